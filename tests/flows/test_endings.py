"""The evaluation ends as Prefect saw the flow run end, for every end inside a living process."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ParameterTypeError
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelled, Failed
from support import Evaluations, wait_until

from prefect_prime.flows import current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def name() -> str:
    return f"ending-{uuid4().hex[:8]}"


@pytest.fixture
def tracked(platform: LocalPlatform, name: str) -> Any:
    def decorate(**options: Any) -> Any:
        return eval_flow(
            environments=["toy"],
            evaluation_name=name,
            credentials=platform.credentials,
            **options,
        )

    return decorate


def log_one(text: str = "4") -> None:
    current_run().log_episodes([episode(messages=[{"role": "user", "content": text}], rewards=1.0)])


def the_only(evaluations: Evaluations, name: str) -> dict[str, Any]:
    (found,) = evaluations.named(name)
    return evaluations(found["id"])


def test_a_return_completes_it(tracked: Any, evaluations: Evaluations, name: str) -> None:
    @tracked()
    def entrypoint() -> None:
        log_one()

    state: State[Any] = entrypoint(return_state=True)

    evaluation = the_only(evaluations, name)
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

    evaluation = the_only(evaluations, name)
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

    evaluation = the_only(evaluations, name)
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

    evaluation = the_only(evaluations, name)
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
    evaluation = the_only(evaluations, name)
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
    evaluation = the_only(evaluations, name)
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

    evaluation = the_only(evaluations, name)
    assert (evaluation["status"], evaluation["error_message"]) == ("FAILED", "below the bar")


def test_a_returned_cancelled_state_cancels_it(
    tracked: Any, evaluations: Evaluations, name: str
) -> None:
    @tracked()
    def entrypoint() -> State[Any]:
        log_one()
        return Cancelled(message="not today")

    entrypoint(return_state=True)

    evaluation = the_only(evaluations, name)
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
import asyncio, os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test runner may ignore it
from pathlib import Path
from prefect_prime.credentials import Credentials
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.records import episode

@eval_flow(environments=["toy"], evaluation_name=os.environ["NAME"])
def entrypoint():
    current_run().log_episodes(
        [episode(messages=[{"role": "user", "content": str(n)}], rewards=1.0) for n in range(5)]
    )
    Path(os.environ["MARKER"]).touch()
    if sys.argv[1] == "exit":
        sys.exit(3)
    time.sleep(60)

@eval_flow(environments=["toy"], evaluation_name=os.environ["NAME"])
async def coroutine():
    current_run().log_episodes(
        [episode(messages=[{"role": "user", "content": str(n)}], rewards=1.0) for n in range(5)]
    )
    Path(os.environ["MARKER"]).touch()
    await asyncio.sleep(60)

if __name__ == "__main__":
    if sys.argv[1] == "async":
        asyncio.run(coroutine())
    else:
        entrypoint()
"""


def run_until_signalled(
    how: str, sent: signal.Signals | None, platform: LocalPlatform, name: str, tmp_path: Path
) -> subprocess.CompletedProcess[str]:
    """Run the entrypoint above as a process of its own and signal it in the middle."""
    (tmp_path / "entrypoint.py").write_text(ENTRYPOINT)
    marker = tmp_path / "marker"
    credentials = platform.credentials
    process = subprocess.Popen(
        [sys.executable, "entrypoint.py", how],
        cwd=tmp_path,
        env={
            **os.environ,
            "NAME": name,
            "MARKER": str(marker),
            "PREFECT_API_URL": PREFECT_API_URL.value() or "",
            "PRIME_API_KEY": credentials.api_key.get_secret_value(),
            "PRIME_API_BASE_URL": credentials.base_url,
            "PRIME_TRACES_URL": credentials.traces_url or "",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(marker.exists)
        if sent is not None:
            process.send_signal(sent)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, output, None)


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
    platform: LocalPlatform,
    evaluations: Evaluations,
    name: str,
    tmp_path: Path,
) -> None:
    ended = run_until_signalled(how, sent, platform, name, tmp_path)

    evaluation = the_only(evaluations, name)
    assert evaluation["status"] == "FAILED", ended.stdout
    assert evaluation["error_message"].startswith("crashed: ")
    assert reason in evaluation["error_message"]
    assert len(evaluations.rows(evaluation["id"])) == 5
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(evaluation["metadata"]["prefect"]["flow_run_id"])
    assert flow_run.state is not None
    assert flow_run.state.is_crashed()
