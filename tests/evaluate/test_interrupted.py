"""An evaluation that ends early keeps what is finished, and a later attempt runs the rest."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import TerminationSignal
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL
from prefect.states import Scheduled
from support import Evaluations, episodes_of, wait_until

from prefect_prime import eval_rollouts
from prefect_prime.errors import ConfigurationError
from prefect_prime.flows import EvalResult
from prefect_prime.flows.evaluate import evaluate, main
from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server")

DIRECTORY = Path("outputs/toy")


def run_again(flow_run_id: str, config: Path) -> EvalResult:
    """What ``prefect flow-run retry`` and a worker do: the same flow run, once more."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(flow_run_id), Scheduled(name="AwaitingRetry"), force=True)
        flow_run = client.read_flow_run(UUID(flow_run_id))
    result: Any = run_flow(evaluate, flow_run=flow_run, parameters={"config": str(config)})
    assert isinstance(result, EvalResult)
    return result


def kinds_of(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["info"]["native_wrapper"]["task"]["data"]["kind"] for row in rows)


@contextmanager
def signalled(model: Any, number: signal.Signals) -> Iterator[None]:
    """Signal this process when a rollout waits and the two others are in the directory."""

    def send() -> None:
        model.holding.wait(60)
        wait_until(lambda: len(episodes_of(DIRECTORY)) == 2)
        os.kill(os.getpid(), number)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),  # maybe ignored
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: None),  # Prefect passes it on
    }
    sending = Thread(target=send, daemon=True)
    sending.start()
    try:
        yield
    finally:
        sending.join()
        for each, handler in before.items():
            signal.signal(each, handler)


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminationSignal)],
    ids=["ctrl-c", "sigterm"],
)
def test_a_signal_ends_it_cleanly_and_a_retry_runs_what_is_missing(
    number: signal.Signals,
    raised: type[BaseException],
    write: Any,
    model: Any,
    evaluations: Evaluations,
) -> None:
    config = write(["add", "raise", "hold"], rollouts=1, name="toy")

    with signalled(model, number), pytest.raises(raised):
        evaluate(str(config))

    first, *_ = evaluations.named("toy")
    first = evaluations(first["id"])
    assert first["status"] == "FAILED"
    assert first["error_message"].startswith("crashed: ")
    assert kinds_of(evaluations.rows(first["id"])) == ["add", "raise"]
    assert "VF_RUN_ID" not in os.environ
    model.release.set()
    calls = model.calls

    result = run_again(first["metadata"]["prefect"]["flow_run_id"], config)

    # What had ended with an error was logged: it is not run again, and stands in both places.
    assert model.calls - calls == 1
    assert (result.status, result.episodes, result.rejected) == ("COMPLETED", 3, 0)
    assert kinds_of(evaluations.rows(result.evaluation_id or "")) == ["add", "hold", "raise"]
    assert len(episodes_of(DIRECTORY)) == 3
    assert f"retry-of:{first['id']}" in evaluations(result.evaluation_id or "")["tags"]


def test_a_time_out_is_no_error_of_a_rollout(write: Any, evaluations: Evaluations) -> None:
    evaluate(str(write(["add"], name="warm")))  # what is imported late counts as the flow's time
    flow = evaluate.with_options(timeout_seconds=3)

    state = flow(str(write(["hold"], rollouts=1)), return_state=True)

    assert state.name == "TimedOut"
    (evaluation, *_) = evaluations.named("toy")
    assert evaluations(evaluation["id"])["status"] == "FAILED"
    assert episodes_of(DIRECTORY) == []


def test_a_flow_retry_goes_on_in_the_same_evaluation(
    write: Any, model: Any, evaluations: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment breaks at its end, when every rollout is done: nothing is run again."""
    run = eval_rollouts.Rollouts.run
    attempts: list[int] = []

    async def breaking(*arguments: Any) -> None:
        await run(*arguments)
        attempts.append(len(arguments[1]))
        raise OSError("the tool server is gone")

    monkeypatch.setattr(eval_rollouts.Rollouts, "run", breaking)
    flow = evaluate.with_options(retries=1)

    result = flow(str(write(["add", "raise"])))

    assert attempts == [2]
    assert (result.status, result.episodes, result.rejected) == ("COMPLETED", 4, 0)
    assert model.calls == 4
    assert len(evaluations.rows(result.evaluation_id or "")) == 4


def test_what_was_logged_is_not_run_again_where_the_directory_is_gone(
    write: Any, model: Any, evaluations: Evaluations
) -> None:
    config = write(["add", "hold"], rollouts=2)
    with signalled(model, signal.SIGINT), pytest.raises(KeyboardInterrupt):
        evaluate(str(config))
    (first, *_) = evaluations.named("toy")
    shutil.rmtree("outputs")
    model.release.set()
    calls = model.calls

    flow_run_id = evaluations(first["id"])["metadata"]["prefect"]["flow_run_id"]
    result = run_again(flow_run_id, config)

    assert (result.episodes, model.calls - calls) == (4, 2)
    assert kinds_of(evaluations.rows(result.evaluation_id or "")) == ["add"] * 2 + ["hold"] * 2


def test_called_where_a_loop_runs_it_gets_a_thread(write: Any) -> None:
    config = str(write(["add"]))

    async def notebook() -> Any:
        return evaluate(config)

    assert asyncio.run(notebook()).episodes == 2


def test_a_directory_in_use_is_refused(write: Any, model: Any) -> None:
    config = str(write(["hold"], rollouts=1))
    results: list[Any] = []
    first = Thread(target=lambda: results.append(evaluate(config)))
    first.start()
    model.holding.wait(60)

    with pytest.raises(ConfigurationError, match="is in use by another run"):
        evaluate(config)

    model.release.set()
    first.join()
    assert results[0].episodes == 1


# -- the command -----------------------------------------------------------------------


def test_the_command_prints_what_came_of_it(
    write: Any, platform: LocalPlatform, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(["add", "raise"], rollouts=1)

    status = main([str(config), "--num-rollouts", "2", "--set", "select.limit=1"])

    output = capsys.readouterr().out
    assert status == 0, output
    assert "COMPLETED: 2 episode(s)" in output
    assert "avg_reward: 1.0" in output
    assert platform.url in output


def test_the_command_says_what_is_wrong_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["missing.toml"]) == 1
    assert "'missing.toml' does not exist" in capsys.readouterr().err


def test_the_command_interrupted_says_so_by_its_status(write: Any, model: Any) -> None:
    with signalled(model, signal.SIGINT):
        assert main([str(write(["add", "add", "hold"], rollouts=1))]) == 130


def test_a_killed_run_goes_on_in_its_directory(
    write: Any, model: Any, evaluations: Evaluations
) -> None:
    config = write(["add", "add", "hold"], rollouts=1)
    running = subprocess.Popen(
        [sys.executable, "-m", "prefect_prime.flows.evaluate", str(config)],
        env={
            **os.environ,
            "PREFECT_API_URL": PREFECT_API_URL.value() or "",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        model.holding.wait(120)
        wait_until(lambda: len(episodes_of(DIRECTORY)) == 2)
    finally:
        running.kill()
        running.wait()
    with (DIRECTORY / "traces.jsonl").open("ab") as file:
        file.write(b'{"id": "torn", "tra')
    left = shutil.copytree("outputs", "left", symlinks=True)
    (killed, *_) = evaluations.named("toy")
    flow_run_id = evaluations(killed["id"])["metadata"]["prefect"]["flow_run_id"]
    model.release.set()
    calls = model.calls

    other = evaluate(str(config))  # somebody starts it anew
    shutil.rmtree("outputs")
    Path(left).rename("outputs")
    same = run_again(flow_run_id, config)

    assert model.calls - calls == 2
    for result in (other, same):
        assert (result.status, result.episodes, result.rejected) == ("COMPLETED", 3, 0)
        assert len(evaluations.rows(result.evaluation_id or "")) == 3
    assert len(episodes_of(DIRECTORY)) == 3
    # Nobody had closed it before the other run began, and then it was closed as crashed or
    # taken up by its own flow run; in neither case it is left open.
    assert evaluations(killed["id"])["status"] in {"COMPLETED", "FAILED"}
