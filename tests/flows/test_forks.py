"""A fork of the eval's process is a guest: it inherits nothing to flush or to close."""

import gc
import multiprocessing
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import guest_workers
import pytest
from eval_processes import EvalProcesses
from guest_workers import by_worker
from prefect.client.orchestration import get_client
from support import Evaluations
from tracked import the_flow_run_of

from prefect_prime.errors import ConfigurationError
from prefect_prime.flows import EvalRun, current_run, eval_flow
from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server")
SPAWN = multiprocessing.get_context("spawn")


def forked(work: Callable[[], object]) -> int:
    """Do something in a fork of this process; its id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        gc.collect()
        os._exit(0)
    finally:
        os._exit(1)


def test_a_fork_in_the_middle_of_uploads_sends_nothing_twice_and_breaks_nothing(
    evaluate: Any, evaluations: Evaluations, spool_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_SEGMENT_BYTES", "4000")
    children: list[int] = []

    def body(run: EvalRun) -> None:
        for number in range(6):
            run.log_episodes(guest_workers.rollouts(f"owner{number}", 10))
            child = f"child{number}"
            children.append(forked(lambda: guest_workers.log(run, child, 10)))  # noqa: B023 - called at once
        assert [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in children] == [0] * 6
        assert run.flush()
        with closing(sqlite3.connect(*spool_dir.glob("*/owner/ledger.sqlite3"))) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        run.log_episodes(guest_workers.rollouts("after", 2))

    result = evaluate(body)

    rows = by_worker(evaluations.rows(result.evaluation_id))
    wanted = {f"{who}{n}": list(range(10)) for who in ("owner", "child") for n in range(6)}
    assert rows == {**wanted, "after": [0, 1]}
    assert result.status == "COMPLETED"


def test_a_killed_guest_loses_nothing_that_it_had_logged(
    evaluate: Any, evaluations: Evaluations
) -> None:
    def body(run: EvalRun) -> None:
        process = SPAWN.Process(target=guest_workers.log_and_be_killed, args=(run, "killed", 5))
        process.start()
        child = forked(lambda: guest_workers.log_and_be_killed(run, "forked", 5))
        process.join()
        os.waitpid(child, 0)
        assert process.exitcode == -9

    result = evaluate(body)

    rows = by_worker(evaluations.rows(result.evaluation_id))
    assert rows == {"killed": list(range(5)), "forked": list(range(5))}


def test_a_fork_that_comes_back_from_the_entrypoint_finishes_nothing(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    pids: list[int] = []

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        run = current_run()
        run.log_episodes(guest_workers.rollouts("owner", 1))
        child = forked(lambda: come_back(run))
        pids.append(child)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def come_back(run: EvalRun) -> None:
        guest_workers.log(run, "child", 1)
        run.end()
        assert not run.is_here

    result = entrypoint()

    assert by_worker(evaluations.rows(result.evaluation_id)) == {"owner": [0], "child": [0]}


#: The fork leaves by ``how``, through everything that surrounds the entrypoint.
LEAVES = """
import os, sys
from tracked import rollout
from prefect_prime.flows import current_run, eval_flow

name, how = sys.argv[1:]

@eval_flow(environments=["toy"], evaluation_name=name)
def entrypoint():
    run = current_run()
    run.log_episodes([rollout("before")])
    child = os.fork()
    if child == 0:
        run.log_episodes([rollout("child")])
        if how == "exits":
            sys.exit(7)
        elif how == "raises":
            raise ValueError("in the fork")
        else:
            return "of the fork"
    _, status = os.waitpid(child, 0)
    print("the fork's status:", os.waitstatus_to_exitcode(status))
    run.log_episodes([rollout("after")])
    return "of the eval"

print("returned:", entrypoint())
"""


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(("how", "status"), [("exits", 7), ("raises", 1), ("returns", 0)])
def test_a_fork_that_leaves_the_entrypoint_ends_there_and_the_parent_alone_closes(
    how: str, status: int, eval_processes: EvalProcesses, evaluations: Evaluations, name: str
) -> None:
    process = eval_processes.run(LEAVES, name, how)

    assert process.returncode == 0, process.output
    assert f"the fork's status: {status}" in process.output
    assert process.output.count("returned:") == 1, process.output
    evaluation = evaluations.only(name)
    assert evaluation["status"] == "COMPLETED"
    examples = [row["example_id"] for row in evaluations.rows(evaluation["id"])]
    assert sorted(examples) == ["after", "before", "child"]
    assert evaluation["metrics"]["prime_runs"] == {"traces_episodes_written": 3}
    states = state_names(the_flow_run_of(evaluation))
    assert states[-2:] == ["Running", "Completed"], states
    assert states.count("Completed") == 1


def state_names(flow_run_id: UUID) -> list[str]:
    """The states that a flow run went through."""
    with get_client(sync_client=True) as client:
        return [str(state.name) for state in client.read_flow_run_states(flow_run_id)]


def test_a_guest_does_not_claim_to_know_what_is_logged(evaluate: Any) -> None:
    def ask(run: EvalRun) -> None:
        with pytest.raises(ConfigurationError, match="process that the eval runs in"):
            run.remaining([1, 2], key=int)

    def body(run: EvalRun) -> None:
        run.log_episodes(guest_workers.rollouts("owner", 1))
        assert os.waitstatus_to_exitcode(os.waitpid(forked(lambda: ask(run)), 0)[1]) == 0

    assert evaluate(body).episodes == 1
