"""``on_error``: whether the platform's trouble is the eval's."""

import signal
from typing import Any

import pytest
from eval_processes import EvalProcesses
from pydantic import SecretStr
from support import Evaluations, wait_until

from prefect_prime.errors import UploadFailedError
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")


def rollouts(count: int) -> list[dict[str, Any]]:
    return [episode(rewards=1.0, example_id=number) for number in range(count)]


def the_only(platform: LocalPlatform) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The platform's one evaluation, and its rows."""
    with platform.credentials.get_client() as client:
        (found,) = client.list_evaluations()["evaluations"]
        evaluations = Evaluations(client)
        return evaluations(found["id"]), evaluations.rows(found["id"])


def test_under_raise_flush_says_what_failed_where_and_why() -> None:
    with LocalPlatform(traces="forbidden") as platform:

        @eval_flow(environments=["toy"], credentials=platform.credentials, on_error="raise")
        def entrypoint() -> None:
            current_run().log_episodes(rollouts(3))
            current_run().flush()
            raise AssertionError("flush has not raised")

        with pytest.raises(UploadFailedError) as caught:
            entrypoint()
        evaluation, rows = the_only(platform)

    assert "3 record(s) were not stored by the traces sink: refused: " in str(caught.value)
    assert "forbidden" in str(caught.value).lower()
    assert (evaluation["status"], len(rows)) == ("FAILED", 3)


def test_under_raise_an_entrypoint_that_goes_on_fails_after_everything_else_is_sent() -> None:
    with LocalPlatform(traces="forbidden") as platform:

        @eval_flow(environments=["toy"], credentials=platform.credentials, on_error="raise")
        def entrypoint() -> None:
            run = current_run()
            run.log_episodes(rollouts(3))
            with pytest.raises(UploadFailedError):
                run.flush()
            run.log_episodes(episode(rewards=1.0, example_id=number) for number in (7, 8))

        with pytest.raises(UploadFailedError):
            entrypoint()
        evaluation, rows = the_only(platform)

    assert (evaluation["status"], len(rows)) == ("FAILED", 5)
    assert evaluation["metadata"]["prefect"]["losses"] == {
        "traces": {"failed": 5, "pending": 0},
        "samples": {"failed": 0, "pending": 0},
    }


def test_under_raise_a_platform_that_is_away_at_the_start_fails_the_run() -> None:
    with LocalPlatform() as platform:
        gone = platform.credentials
    ran: list[bool] = []

    @eval_flow(environments=["toy"], credentials=gone, on_error="raise")
    def entrypoint() -> None:
        ran.append(True)

    state = entrypoint(return_state=True)

    assert state.is_failed()
    assert ran == []


@pytest.mark.parametrize("trouble", ["forbidden", "wrong key", "gone"])
def test_under_warn_none_of_it_reaches_the_eval(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_DRAIN_TIMEOUT", "1")
    platform = LocalPlatform(traces="forbidden" if trouble == "forbidden" else "enabled")
    with platform:
        credentials = platform.credentials
        if trouble == "wrong key":
            credentials = credentials.model_copy(update={"api_key": SecretStr("another")})

        @eval_flow(environments=["toy"], credentials=credentials, retries=1)
        def entrypoint() -> str:
            run = current_run()
            if trouble == "gone" and run.attempt == 1:
                platform.stop()
            run.log_episodes(rollouts(3) if run.attempt == 1 else [])
            run.flush(1)
            assert run.episodes_logged == 3
            run.update_summary({"mine": 1})
            assert run.summary["mine"] == 1
            if run.attempt == 1:
                raise ValueError("retried")
            return "done"

        assert entrypoint() == "done"


DRAINING = """
import sys
from tracked import rollout
from prefect_prime.flows import current_run, eval_flow, sessions

sessions._DRAIN_AFTER_SIGNAL = 0.5

@eval_flow(environments=["toy"], evaluation_name=sys.argv[1])
def entrypoint():
    current_run().log_episodes(rollout(n) for n in range(5))

entrypoint()
"""


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "ctrl-c"])
def test_a_signal_while_the_end_is_draining_ends_it_in_bounded_time(
    sent: signal.Signals,
    eval_processes: EvalProcesses,
    evaluations: Evaluations,
    name: str,
    nobody: str,
) -> None:
    with eval_processes.running(DRAINING, name, env={"PRIME_TRACES_URL": nobody}) as process:
        (found,) = wait_until(lambda: evaluations.named(name))
        wait_until(lambda: len(evaluations.rows(found["id"])) == 5)
        process.signal(sent)
        process.wait()

    evaluation = evaluations(found["id"])
    assert evaluation["status"] == "FAILED", process.output
    assert evaluation["error_message"].startswith("crashed: ")
    assert evaluation["metadata"]["prefect"]["losses"]["traces"] == {"failed": 0, "pending": 5}
    assert len(evaluations.rows(found["id"])) == 5
