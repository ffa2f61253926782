"""The evaluation ends as Prefect saw the flow run end, for every end inside a living process."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from eval_processes import EvalProcesses
from prefect.client.schemas.objects import State
from prefect.exceptions import ParameterTypeError
from prefect.states import Cancelled, Failed
from support import Evaluations, wait_until
from tracked import read_flow_run, the_flow_run_of

from prefect_prime.flows import current_run
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server", "account")


def log_one(text: str = "4") -> None:
    current_run().log_episodes([episode(messages=[{"role": "user", "content": text}], rewards=1.0)])


def test_a_return_completes_it(tracked: Any, evaluations: Evaluations, name: str) -> None:
    @tracked()
    def entrypoint() -> None:
        log_one()

    state: State[Any] = entrypoint(return_state=True)

    evaluation = evaluations.only(name)
    assert (evaluation["status"], evaluation.get("error_message")) == ("COMPLETED", None)
    assert state.message == "1 episode, avg_reward 1"
    assert "prime_runs" not in evaluation["metadata"]


def test_an_exception_fails_it_with_its_message_and_keeps_what_was_logged(
    tracked: Any, evaluations: Evaluations, name: str
) -> None:
    @tracked()
    def entrypoint() -> None:
        log_one()
        raise ValueError("the model is gone")

    with pytest.raises(ValueError, match="the model is gone"):
        entrypoint()

    evaluation = evaluations.only(name)
    assert evaluation["status"] == "FAILED"
    assert "the model is gone" in evaluation["error_message"]
    assert evaluation["metadata"]["prime_runs"]["status"] == "FAILED"
    assert evaluation["metrics"]["avg_reward"] == 1.0
    assert len(evaluations.rows(evaluation["id"])) == 1


def test_exhausted_retries_fail_one_evaluation_with_all_attempts_in_it(
    tracked: Any, evaluations: Evaluations, name: str
) -> None:
    @tracked(retries=2)
    def entrypoint() -> None:
        log_one(f"attempt {current_run().attempt}")
        raise ValueError("never works")

    with pytest.raises(ValueError, match="never works"):
        entrypoint()

    evaluation = evaluations.only(name)
    assert evaluation["status"] == "FAILED"
    assert len(evaluations.rows(evaluation["id"])) == 3
    assert evaluation["metadata"]["prefect"]["attempt"] == 3


def test_a_retry_that_succeeds_completes_it_once(
    tracked: Any, platform: LocalPlatform, evaluations: Evaluations, name: str
) -> None:
    @tracked(retries=1)
    def entrypoint() -> None:
        log_one(f"attempt {current_run().attempt}")
        if current_run().attempt == 1:
            raise ValueError("works the second time")

    entrypoint()

    evaluation = evaluations.only(name)
    assert evaluation["status"] == "COMPLETED"
    assert len(evaluations.rows(evaluation["id"])) == 2
    finalized = [
        request.path
        for request in platform.requests
        if request.path.endswith(f"{evaluation['id']}/finalize")
    ]
    assert len(finalized) == 1


def test_a_time_out_fails_it(tracked: Any, evaluations: Evaluations, name: str) -> None:
    @tracked(timeout_seconds=2)
    def entrypoint() -> None:
        log_one()
        for _ in range(300):  # Prefect's time-out cannot interrupt one long sleep
            time.sleep(0.1)

    state: State[Any] = entrypoint(return_state=True)

    assert state.name == "TimedOut"
    evaluation = evaluations.only(name)
    assert evaluation["status"] == "FAILED"
    assert "exceeded timeout" in evaluation["error_message"]
    assert len(evaluations.rows(evaluation["id"])) == 1


def test_a_time_out_of_a_coroutine_fails_it(
    tracked: Any, evaluations: Evaluations, name: str
) -> None:
    @tracked(timeout_seconds=2)
    async def entrypoint() -> None:
        log_one()
        await asyncio.sleep(30)

    state = asyncio.run(entrypoint(return_state=True))

    assert state.name == "TimedOut"
    evaluation = evaluations.only(name)
    assert evaluation["status"] == "FAILED"
    assert len(evaluations.rows(evaluation["id"])) == 1


def test_a_returned_failed_state_fails_it(
    tracked: Any, evaluations: Evaluations, name: str
) -> None:
    @tracked()
    def entrypoint() -> State[Any]:
        log_one()
        return Failed(message="below the bar")

    entrypoint(return_state=True)

    evaluation = evaluations.only(name)
    assert (evaluation["status"], evaluation["error_message"]) == ("FAILED", "below the bar")


def test_a_returned_cancelled_state_cancels_it(
    tracked: Any, evaluations: Evaluations, name: str
) -> None:
    @tracked()
    def entrypoint() -> State[Any]:
        log_one()
        return Cancelled(message="not today")

    entrypoint(return_state=True)

    evaluation = evaluations.only(name)
    assert (evaluation["status"], evaluation["error_message"]) == ("CANCELLED", "not today")
    assert len(evaluations.rows(evaluation["id"])) == 1


def test_a_parameter_that_fails_validation_opens_nothing(
    tracked: Any, evaluations: Evaluations, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    @tracked()
    def entrypoint(n: int) -> None:
        log_one(str(n))

    with pytest.raises(ParameterTypeError):
        entrypoint(n="many")

    assert evaluations.named(name) == []
    assert "error was encountered while running hook" not in caplog.text


ENTRYPOINT = """
import asyncio, sys, time
from pathlib import Path
from tracked import rollout
from prefect_prime.flows import current_run, eval_flow

name, marker, how = sys.argv[1:]

@eval_flow(environments=["toy"], evaluation_name=name)
def entrypoint():
    current_run().log_episodes(rollout(n) for n in range(5))
    Path(marker).touch()
    if how == "exit":
        sys.exit(3)
    time.sleep(60)

@eval_flow(environments=["toy"], evaluation_name=name)
async def coroutine():
    current_run().log_episodes(rollout(n) for n in range(5))
    Path(marker).touch()
    await asyncio.sleep(60)

if __name__ == "__main__":
    if how == "async":
        asyncio.run(coroutine())
    else:
        entrypoint()
"""


@pytest.mark.parametrize(
    ("how", "sent", "reason"),
    [
        ("sleep", signal.SIGINT, "interrupt signal"),
        ("async", signal.SIGINT, "cancelled by the runtime environment"),
        ("sleep", signal.SIGTERM, "termination signal"),
        ("async", signal.SIGTERM, "cancelled by the runtime environment"),
        ("exit", None, "system exit"),
    ],
    ids=["ctrl-c", "ctrl-c in a coroutine", "sigterm", "sigterm in a coroutine", "sys.exit"],
)
def test_an_end_from_outside_is_a_crash_that_loses_nothing(  # noqa: PLR0917 - fixtures
    how: str,
    sent: signal.Signals | None,
    reason: str,
    eval_processes: EvalProcesses,
    evaluations: Evaluations,
    name: str,
    tmp_path: Path,
) -> None:
    marker = tmp_path / "marker"
    with eval_processes.running(ENTRYPOINT, name, marker, how) as process:
        wait_until(marker.exists)
        if sent is not None:
            process.signal(sent)
        process.wait()

    evaluation = evaluations.only(name)
    assert evaluation["status"] == "FAILED", process.output
    assert evaluation["error_message"].startswith("crashed: ")
    assert reason in evaluation["error_message"]
    assert len(evaluations.rows(evaluation["id"])) == 5
    flow_run = read_flow_run(the_flow_run_of(evaluation))
    assert flow_run.state is not None
    assert flow_run.state.is_crashed()
