"""Another process goes on where a dead one stopped: nothing is run, sent or closed twice."""

import signal
from pathlib import Path

import pytest
from eval_processes import EvalProcesses
from support import Evaluations, wait_until
from tracked import numbers, the_flow_run_of

from prefect_prime.flows.reconcile import reconcile

pytestmark = pytest.mark.usefixtures("prefect_server", "account")

STOPS = """
import sys, time
from pathlib import Path
from uuid import UUID
from tracked import go_on, rollout
from prefect_prime.flows import current_run, eval_flow

name, marker, *flow_run_id = sys.argv[1:]

@eval_flow(environments=["toy"], evaluation_name=name)
def entrypoint():
    run = current_run()
    for task in run.remaining(range(6), key=lambda task: task):
        run.log_episodes([rollout(task, reward=float(task % 2))])
        if task == 1:
            run.flush()
        if run.attempt == 1 and task == 3:
            Path(marker).touch()
            time.sleep(60)

if __name__ == "__main__":
    if flow_run_id:
        go_on(entrypoint, UUID(*flow_run_id))
    else:
        entrypoint()
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_another_process_goes_on_where_the_dead_one_stopped(
    sent: signal.Signals,
    eval_processes: EvalProcesses,
    evaluations: Evaluations,
    name: str,
    tmp_path: Path,
) -> None:
    marker = tmp_path / "marker"
    with eval_processes.running(STOPS, name, marker) as process:
        wait_until(marker.exists)
        process.signal(sent)
        process.wait()
    (first,) = evaluations.named(name)
    run_id = the_flow_run_of(evaluations(first["id"]))

    output = eval_processes.run(STOPS, name, marker, run_id).output

    newest, *older = evaluations.named(name)
    assert evaluations(newest["id"])["status"] == "COMPLETED", output
    assert numbers(evaluations.rows(newest["id"])) == {task: [1] for task in range(6)}, output
    assert evaluations(newest["id"])["metadata"]["prefect"]["attempt"] == 2
    assert evaluations(newest["id"])["metrics"]["avg_reward"] == 0.5
    assert "Attempt 2: 4 kept, 2 to run." in output
    if sent == signal.SIGKILL:  # nobody closed it
        assert older == []
    else:
        assert [evaluations(each["id"])["status"] for each in older] == ["FAILED"]
        assert f"retry-of:{first['id']}" in evaluations(newest["id"])["tags"]


RETURNS = """
import sys
from pathlib import Path
from uuid import UUID
from tracked import go_on, rollout
from prefect_prime.flows import current_run, eval_flow

name, marker, *flow_run_id = sys.argv[1:]

@eval_flow(environments=["toy"], evaluation_name=name)
def entrypoint():
    with Path(marker).open("a") as calls:
        calls.write("called\\n")
    current_run().log_episodes(rollout(task) for task in range(5))

if flow_run_id:
    state = go_on(entrypoint, UUID(*flow_run_id))
    print(state.message, state.result().status)
else:
    entrypoint()
"""


@pytest.mark.parametrize("by", ["the next attempt", "reconcile"])
def test_a_process_that_died_while_it_drained_is_finished_without_another_call(  # noqa: PLR0917 - fixtures
    by: str,
    eval_processes: EvalProcesses,
    evaluations: Evaluations,
    name: str,
    nobody: str,
    tmp_path: Path,
) -> None:
    """``by`` whom it is: after ``reconcile`` the next attempt finds nothing left to do."""
    marker = tmp_path / "marker"
    with eval_processes.running(RETURNS, name, marker, env={"PRIME_TRACES_URL": nobody}):
        (found,) = wait_until(lambda: evaluations.named(name))
        wait_until(lambda: len(evaluations.rows(found["id"])) == 5)
    if by == "reconcile":
        reconcile(orphaned_after=0.0)
        assert evaluations(found["id"])["status"] == "COMPLETED"

    run_id = the_flow_run_of(evaluations(found["id"]))
    output = eval_processes.run(RETURNS, name, marker, run_id).output

    assert "5 episodes, avg_reward 1 COMPLETED" in output
    assert marker.read_text().splitlines() == ["called"]
    evaluation = evaluations.only(name)
    assert evaluation["status"] == "COMPLETED"
    assert evaluation["metrics"]["prime_runs"] == {"traces_episodes_written": 5}
    assert len(evaluations.rows(evaluation["id"])) == 5


DIES = """
import os, sys
from uuid import UUID
from tracked import rollout, run_again
from prefect_prime.flows import current_run, eval_flow

name, *flow_run_id = sys.argv[1:]

@eval_flow(environments=["toy"], evaluation_name=name)
def entrypoint():
    run = current_run()
    run.log_episodes([rollout(1)])
    if run.attempt == 1:
        os._exit(9)

if flow_run_id:
    run_again(entrypoint, UUID(*flow_run_id))
else:
    entrypoint()
"""


def test_one_that_its_dead_machine_left_open_is_closed_and_its_records_still_come(
    eval_processes: EvalProcesses,
    evaluations: Evaluations,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Its owner's spool comes back with the machine: what it holds belongs where it was logged."""
    died, lives = tmp_path / "died", tmp_path / "lives"
    monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", str(died))
    assert eval_processes.run(DIES, name).returncode == 9
    first = evaluations.only(name)
    assert first["status"] == "RUNNING"

    monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", str(lives))
    again = eval_processes.run(DIES, name, the_flow_run_of(first))
    assert again.returncode == 0, again.output
    second, first = evaluations.named(name)
    assert (first["status"], second["status"]) == ("FAILED", "COMPLETED")
    assert "generation 2" in first["metadata"]["prime_runs"]["error_message"]

    monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", str(died))
    assert evaluations.rows(first["id"]) == []
    reconcile(orphaned_after=0.0)
    assert [row["example_id"] for row in evaluations.rows(first["id"])] == [1]
    assert evaluations.named(name)[1]["status"] == "FAILED"
