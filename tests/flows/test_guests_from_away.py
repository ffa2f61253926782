"""A guest on another machine has a spool of its own and uploads itself; it closes nothing."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guest_workers
import pytest
from eval_processes import EvalProcesses
from guest_workers import by_worker
from support import Evaluations, wait_until

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.flows import EvalRun, current_run, eval_flow
from prefect_prime.flows.reconcile import reconcile
from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server", "account")

#: Logs into a run that came in a file; then it ends, or waits to be killed.
AWAY = """
import sys, time
from pathlib import Path
from guest_workers import log_into_a_pickle

pickled, logged, *then = map(Path, sys.argv[1:])
log_into_a_pickle(pickled.read_bytes(), "away", 3)
logged.touch()
if then:
    time.sleep(60)
"""


def test_a_guest_on_another_machine_uploads_itself_and_closes_nothing(
    evaluate: Callable[..., Any],
    eval_processes: EvalProcesses,
    platform: LocalPlatform,
    evaluations: Evaluations,
    tmp_path: Path,
) -> None:
    elsewhere = tmp_path / "elsewhere"

    def body(run: EvalRun) -> None:
        pickled = pickle.dumps(run)
        assert platform.credentials.api_key.get_secret_value().encode() not in pickled
        (tmp_path / "run").write_bytes(pickled)
        done = eval_processes.run(
            AWAY,
            tmp_path / "run",
            tmp_path / "logged",
            env={"PREFECT_PRIME_SPOOL_DIR": str(elsewhere)},
        )
        assert done.returncode == 0, done.output
        assert by_worker(evaluations.rows(run.id or "")) == {"away": [0, 1, 2]}, done.output
        assert evaluations(run.id or "")["status"] == "RUNNING"
        run.log_episodes(guest_workers.rollouts("owner", 1))

    result = evaluate(body)

    rows = by_worker(evaluations.rows(result.evaluation_id))
    assert rows == {"away": [0, 1, 2], "owner": [0]}
    assert evaluations(result.evaluation_id)["status"] == "COMPLETED"
    assert [each for each in elsewhere.iterdir() if each.is_dir()] == []


@pytest.mark.parametrize("when", ["while its owner runs", "when all is closed"])
def test_reconcile_sends_what_a_guest_left_that_died_on_another_machine(  # noqa: PLR0917 - fixtures
    when: str,
    evaluate: Callable[..., Any],
    eval_processes: EvalProcesses,
    evaluations: Evaluations,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = tmp_path / "elsewhere"

    def reconcile_there() -> None:
        with monkeypatch.context() as there:
            there.setenv("PREFECT_PRIME_SPOOL_DIR", str(elsewhere))
            reconcile(orphaned_after=0.0)

    def body(run: EvalRun) -> None:
        (tmp_path / "run").write_bytes(pickle.dumps(run))
        logged = tmp_path / "logged"
        there = {"PREFECT_PRIME_SPOOL_DIR": str(elsewhere)}
        with eval_processes.running(AWAY, tmp_path / "run", logged, "waits", env=there) as guest:
            wait_until(lambda: logged.exists() or guest.has_ended())
            assert not guest.has_ended(), guest.output
        assert by_worker(evaluations.rows(run.id or "")) == {}
        if when == "while its owner runs":
            reconcile_there()
            assert by_worker(evaluations.rows(run.id or "")) == {"away": [0, 1, 2]}
            assert evaluations(run.id or "")["status"] == "RUNNING"
        run.log_episodes(guest_workers.rollouts("owner", 1))

    result = evaluate(body)
    if when == "when all is closed":
        reconcile_there()

    assert by_worker(evaluations.rows(result.evaluation_id)) == {"away": [0, 1, 2], "owner": [0]}
    assert evaluations(result.evaluation_id)["status"] == "COMPLETED"


def test_a_pickle_holds_no_key_but_maybe_a_block_s_name(platform: LocalPlatform) -> None:
    PrimeCredentials(
        api_key=platform.credentials.api_key,
        base_url=platform.credentials.base_url,
        traces_url=platform.credentials.traces_url,
    ).save("for-guests", overwrite=True)
    pickles: list[bytes] = []

    @eval_flow(environments=["toy"], credentials="for-guests")
    def entrypoint() -> None:
        pickles.append(pickle.dumps(current_run()))

    entrypoint()

    assert b"for-guests" in pickles[0]
    assert platform.credentials.api_key.get_secret_value().encode() not in pickles[0]
