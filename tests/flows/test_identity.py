"""One flow run, one evaluation at a time: what a retry keeps, and what it does again."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL
from prefect.states import Crashed, Failed, Scheduled
from support import Evaluations, wait_until

from prefect_prime.errors import UploadFailedError
from prefect_prime.flows import EvalRun, current_run, eval_flow
from prefect_prime.flows.reconcile import reconcile
from prefect_prime.flows.sessions import close_evaluation_of_run
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def name() -> str:
    return f"identity-{uuid4().hex[:8]}"


@pytest.fixture
def tracked(platform: LocalPlatform, name: str) -> Any:
    def decorate(**options: Any) -> Any:
        options = {"credentials": platform.credentials, **options}
        return eval_flow(environments=["toy"], evaluation_name=name, **options)

    return decorate


def rollout(example: object, reward: float = 1.0) -> dict[str, Any]:
    return episode(rewards=reward, example_id=example)  # type: ignore[arg-type]  # some tests lie


def run_again(flow: Any, flow_run_id: UUID, **parameters: Any) -> State[Any]:
    """What ``prefect flow-run retry`` and a worker do: the same flow run, once more."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run_id, Scheduled(name="AwaitingRetry"), force=True)
        flow_run: FlowRun = client.read_flow_run(flow_run_id)
    state: State[Any] = run_flow(
        flow, flow_run=flow_run, parameters=parameters, return_type="state"
    )
    return state


def the_flow_run_of(evaluation: dict[str, Any]) -> UUID:
    return UUID(evaluation["metadata"]["prefect"]["flow_run_id"])


def numbers(rows: list[dict[str, Any]]) -> dict[Any, list[int]]:
    """Rollout numbers by example."""
    found: dict[Any, list[int]] = {}
    for row in rows:
        found.setdefault(row["example_id"], []).append(row["rollout_number"])
    return {example: sorted(each) for example, each in found.items()}


# -- a retry in the same process -------------------------------------------------------


def test_a_retry_that_asks_what_remains_runs_only_that(
    tracked: Any, evaluations: Evaluations, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []

    @tracked(retries=1)
    def entrypoint() -> None:
        run = current_run()
        for task in run.remaining(range(100), key=lambda task: task):
            if run.attempt == 1 and task == 60:
                raise ValueError("in the middle")
            ran.append(task)
            run.log_episodes([rollout(task, reward=task % 2)])
        assert run.episodes_logged == 100

    entrypoint()

    (evaluation,) = evaluations.named(name)
    rows = evaluations.rows(evaluation["id"])
    assert ran == list(range(100))
    assert numbers(rows) == {task: [1] for task in range(100)}
    assert evaluations(evaluation["id"])["metrics"]["avg_reward"] == 0.5
    assert evaluations(evaluation["id"])["status"] == "COMPLETED"
    assert "Attempt 2: 60 kept, 40 to run." in caplog.text
    assert "had logged already" not in caplog.text


def test_several_rollouts_of_an_example_are_counted_not_just_seen(
    tracked: Any, evaluations: Evaluations, name: str
) -> None:
    @tracked(retries=1)
    def entrypoint() -> None:
        run = current_run()
        if run.attempt == 2:
            assert run.logged == Counter({"a": 3, "b": 1})
        todo = run.remaining(["a", "b", "a", "b", "a", "b"], key=str)
        assert todo == (list("ababab") if run.attempt == 1 else ["b", "b"])
        for example in sorted(todo)[: 4 if run.attempt == 1 else None]:
            run.log_episodes([rollout(example)])
        if run.attempt == 1:
            raise ValueError("in the middle")

    entrypoint()

    (evaluation,) = evaluations.named(name)
    assert numbers(evaluations.rows(evaluation["id"])) == {"a": [1, 2, 3], "b": [1, 2, 3]}


def test_a_key_is_compared_as_it_reads_in_a_record(tracked: Any) -> None:
    examples = [uuid4(), uuid4()]

    @tracked(retries=1)
    def entrypoint() -> None:
        run = current_run()
        todo = run.remaining(examples, key=lambda example: example)
        assert todo == examples[run.attempt - 1 :]
        run.log_episodes([rollout(str(todo[0]))])
        if run.attempt == 1:
            raise ValueError("in the middle")

    assert entrypoint(return_state=True).is_completed()


def test_a_naive_retry_is_told_once_that_it_logged_everything_again(
    tracked: Any, evaluations: Evaluations, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    @tracked(retries=1)
    def entrypoint() -> None:
        current_run().log_episodes(rollout(task) for task in range(3))
        if current_run().attempt == 1:
            raise ValueError("at the end")

    entrypoint()

    (evaluation,) = evaluations.named(name)
    assert numbers(evaluations.rows(evaluation["id"])) == {task: [1, 2] for task in range(3)}
    warnings = [each.message for each in caplog.records if "had logged already" in each.message]
    assert len(warnings) == 1
    assert "Attempt 2 logged 3 more episode(s)" in warnings[0]
    assert "run.remaining(tasks, key=...)" in warnings[0]


def test_the_same_records_again_are_neither_sent_nor_warned_about(
    tracked: Any, evaluations: Evaluations, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept = [rollout(task) for task in range(3)]

    @tracked(retries=1)
    def entrypoint() -> None:
        current_run().log_episodes(kept)
        if current_run().attempt == 1:
            raise ValueError("at the end")

    entrypoint()

    (evaluation,) = evaluations.named(name)
    assert len(evaluations.rows(evaluation["id"])) == 3
    assert "had logged already" not in caplog.text


def test_what_is_acknowledged_is_not_sent_again_by_a_retry(
    tracked: Any, platform: LocalPlatform, evaluations: Evaluations, name: str
) -> None:
    @tracked(retries=1)
    def entrypoint() -> None:
        run = current_run()
        for task in run.remaining(range(2), key=lambda task: task):
            run.log_episodes([rollout(task)])
            assert run.flush()
            if run.attempt == 1:
                raise ValueError("in the middle")

    entrypoint()

    (evaluation,) = evaluations.named(name)
    path = f"/api/v1/evaluations/{evaluation['id']}/samples"
    posts = [each for each in platform.requests if (each.method, each.path) == ("POST", path)]
    assert len(posts) == 2


def test_a_returned_failed_state_is_run_again_by_a_retry(
    tracked: Any, evaluations: Evaluations, name: str
) -> None:
    @tracked(retries=1)
    def entrypoint() -> State[Any] | None:
        run = current_run()
        run.log_episodes([rollout(run.attempt)])
        return Failed(message="below the bar") if run.attempt == 1 else None

    entrypoint(return_state=True)

    (evaluation,) = evaluations.named(name)
    assert evaluations(evaluation["id"])["status"] == "COMPLETED"
    assert numbers(evaluations.rows(evaluation["id"])) == {1: [1], 2: [1]}


# -- after the entrypoint has returned ---------------------------------------------------


def test_an_entrypoint_that_has_returned_is_not_called_again_to_send_the_rest() -> None:
    calls: list[int] = []
    with LocalPlatform(traces="forbidden", api_key="k") as platform:

        @eval_flow(
            environments=["toy"], credentials=platform.credentials, on_error="raise", retries=1
        )
        def entrypoint() -> None:
            calls.append(current_run().attempt)
            current_run().log_episodes(rollout(task) for task in range(3))

        with pytest.raises(UploadFailedError, match="3 record"):
            entrypoint()
        with platform.credentials.get_client() as client:
            (evaluation,) = client.list_evaluations()["evaluations"]

    assert calls == [1]
    assert evaluation["status"] == "FAILED"
    assert "3 record(s) were not stored by the traces sink: refused" in evaluation["error_message"]


def test_a_retry_on_a_healthy_platform_sends_everything_into_the_next_evaluation(
    tmp_path: Path,
) -> None:
    calls: list[int] = []

    def evaluation_on(platform: LocalPlatform) -> Any:
        @eval_flow(
            environments=["toy"], credentials=platform.credentials, on_error="raise", name="same"
        )
        def entrypoint() -> None:
            calls.append(current_run().attempt)
            current_run().log_episodes(rollout(task) for task in range(3))

        return entrypoint

    data = tmp_path / "platform"
    with LocalPlatform(data, traces="forbidden", api_key="k") as platform:
        port = int(platform.url.rsplit(":", 1)[1])
        with pytest.raises(UploadFailedError):
            evaluation_on(platform)()
        with platform.credentials.get_client() as client:
            (first,) = client.list_evaluations()["evaluations"]
            before = client.get_evaluation(first["id"])

    with LocalPlatform(data, port, api_key="k") as platform:
        state = run_again(evaluation_on(platform), the_flow_run_of(before))
        with platform.credentials.get_client() as client:
            evaluations = Evaluations(client)
            second, again = client.list_evaluations()["evaluations"]
            rows = evaluations.rows(second["id"])
            completed, untouched = evaluations(second["id"]), evaluations(again["id"])

    assert calls == [1]
    assert state.is_completed()
    assert state.message == "3 episodes, avg_reward 1"
    assert numbers(rows) == {task: [1] for task in range(3)}
    assert completed["status"] == "COMPLETED"
    assert completed["metrics"]["prime_runs"] == {"traces_episodes_written": 3}
    assert f"retry-of:{first['id']}" in completed["tags"]
    assert untouched == before
    with get_client(sync_client=True) as client:
        tags = set(client.read_flow_run(the_flow_run_of(before)).tags)
    assert tags == {"prime", f"prime-eval:{second['id']}"}


# -- after a closed evaluation ---------------------------------------------------------


def test_after_a_closed_evaluation_the_next_one_takes_everything_over(
    tracked: Any, evaluations: Evaluations, name: str
) -> None:
    fails = [True]

    @tracked()
    def entrypoint() -> None:
        run = current_run()
        for task in run.remaining(range(4), key=lambda task: task):
            if fails[0] and task == 2:
                raise ValueError("in the middle")
            run.log_episodes([rollout(task)])

    with pytest.raises(ValueError, match="in the middle"):
        entrypoint()
    (closed,) = evaluations.named(name)
    before = evaluations(closed["id"]), evaluations.rows(closed["id"])
    fails[0] = False
    state = run_again(entrypoint, the_flow_run_of(before[0]))

    result = state.result()
    assert state.is_completed()
    assert result.episodes == 4
    assert result.evaluation_id != closed["id"]
    assert numbers(evaluations.rows(result.evaluation_id)) == {task: [1] for task in range(4)}
    evaluation = evaluations(result.evaluation_id)
    assert evaluation["status"] == "COMPLETED"
    assert f"retry-of:{closed['id']}" in evaluation["tags"]
    assert f"prefect-flow-run:{the_flow_run_of(before[0])}:2" in evaluation["tags"]
    assert evaluation["metadata"]["prefect"]["attempt"] == 2
    assert (evaluations(closed["id"]), evaluations.rows(closed["id"])) == before


def test_generations_chain(tracked: Any, evaluations: Evaluations, name: str) -> None:
    @tracked()
    def entrypoint() -> None:
        run = current_run()
        run.log_episodes([rollout(run.attempt)])
        if run.attempt < 3:
            raise ValueError("not yet")

    entrypoint(return_state=True)
    (first,) = evaluations.named(name)
    run_id = the_flow_run_of(evaluations(first["id"]))
    run_again(entrypoint, run_id)
    run_again(entrypoint, run_id)

    newest, middle, oldest = (evaluations(each["id"]) for each in evaluations.named(name))
    assert [each["status"] for each in (oldest, middle, newest)] == [
        "FAILED",
        "FAILED",
        "COMPLETED",
    ]
    assert f"retry-of:{oldest['id']}" in middle["tags"]
    assert f"retry-of:{middle['id']}" in newest["tags"]
    assert [len(evaluations.rows(each["id"])) for each in (oldest, middle, newest)] == [1, 2, 3]


# -- in another process ----------------------------------------------------------------

ENTRYPOINT = """
import json, os, signal, sys, time
from pathlib import Path
from uuid import UUID
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.records import episode

@eval_flow(environments=["toy"], evaluation_name=os.environ["NAME"])
def entrypoint():
    run = current_run()
    for task in run.remaining(range(6), key=lambda task: task):
        run.log_episodes([episode(rewards=float(task % 2), example_id=task)])
        if task == 1:
            run.flush()
        if run.attempt == 1 and task == 3:
            Path(os.environ["MARKER"]).touch()
            time.sleep(60)

if __name__ == "__main__":
    if len(sys.argv) > 1:
        with get_client(sync_client=True) as client:
            flow_run = client.read_flow_run(UUID(sys.argv[1]))
        run_flow(entrypoint, flow_run=flow_run)
    else:
        entrypoint()
"""


def environment_of(platform: LocalPlatform, name: str, marker: Path) -> dict[str, str]:
    credentials = platform.credentials
    return {
        **os.environ,
        "NAME": name,
        "MARKER": str(marker),
        "PREFECT_API_URL": PREFECT_API_URL.value() or "",
        "PRIME_API_KEY": credentials.api_key.get_secret_value(),
        "PRIME_API_BASE_URL": credentials.base_url,
        "PRIME_TRACES_URL": credentials.traces_url or "",
    }


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_another_process_goes_on_where_the_dead_one_stopped(
    sent: signal.Signals,
    platform: LocalPlatform,
    evaluations: Evaluations,
    name: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "entrypoint.py").write_text(ENTRYPOINT)
    marker = tmp_path / "marker"
    environment = environment_of(platform, name, marker)
    command = [sys.executable, "entrypoint.py"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        wait_until(marker.exists)
        process.send_signal(sent)
        process.communicate(timeout=60)
    finally:
        process.kill()
    (first,) = evaluations.named(name)
    run_id = the_flow_run_of(evaluations(first["id"]))

    again = subprocess.run(
        [*command, str(run_id)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    output = again.stdout + again.stderr
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
import os, sys
from pathlib import Path
from uuid import UUID
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.records import episode

@eval_flow(environments=["toy"], evaluation_name=os.environ["NAME"])
def entrypoint():
    with Path(os.environ["MARKER"]).open("a") as marker:
        marker.write("called\\n")
    current_run().log_episodes(episode(rewards=1.0, example_id=task) for task in range(5))

if len(sys.argv) > 1:
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(UUID(sys.argv[1]))
    state = run_flow(entrypoint, flow_run=flow_run, return_type="state")
    print(state.message, state.result().status)
else:
    entrypoint()
"""


def test_a_process_that_died_while_it_drained_is_finished_without_another_call(
    platform: LocalPlatform, evaluations: Evaluations, name: str, tmp_path: Path
) -> None:
    (tmp_path / "returns.py").write_text(RETURNS)
    marker = tmp_path / "marker"
    environment = environment_of(platform, name, marker)
    with LocalPlatform() as away:
        nobody = away.url
    command = [sys.executable, "returns.py"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**environment, "PRIME_TRACES_URL": nobody},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        (found,) = wait_until(lambda: evaluations.named(name))
        wait_until(lambda: len(evaluations.rows(found["id"])) == 5)
    finally:
        process.kill()
        process.wait()

    run_id = the_flow_run_of(evaluations(found["id"]))
    again = subprocess.run(
        [*command, str(run_id)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    output = again.stdout + again.stderr
    assert "5 episodes, avg_reward 1 COMPLETED" in again.stdout, output
    assert marker.read_text().splitlines() == ["called"]
    (evaluation,) = evaluations.named(name)
    assert evaluations(evaluation["id"])["status"] == "COMPLETED"
    assert evaluations(evaluation["id"])["metrics"]["prime_runs"] == {"traces_episodes_written": 5}
    assert len(evaluations.rows(evaluation["id"])) == 5


def test_a_run_that_reconcile_has_finished_is_not_called_again_by_a_retry(
    platform: LocalPlatform,
    evaluations: Evaluations,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "returns.py").write_text(RETURNS)
    marker = tmp_path / "marker"
    environment = environment_of(platform, name, marker)
    with LocalPlatform() as away:
        nobody = away.url
    command = [sys.executable, "returns.py"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**environment, "PRIME_TRACES_URL": nobody},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        (found,) = wait_until(lambda: evaluations.named(name))
        wait_until(lambda: len(evaluations.rows(found["id"])) == 5)
    finally:
        process.kill()
        process.wait()
    for key, value in environment.items():
        if key.startswith("PRIME_"):
            monkeypatch.setenv(key, value)
    reconcile(orphaned_after=0.0)
    assert evaluations(found["id"])["status"] == "COMPLETED"

    run_id = the_flow_run_of(evaluations(found["id"]))
    again = subprocess.run(
        [*command, str(run_id)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    output = again.stdout + again.stderr
    assert "5 episodes, avg_reward 1 COMPLETED" in again.stdout, output
    assert marker.read_text().splitlines() == ["called"]
    assert [each["id"] for each in evaluations.named(name)] == [found["id"]]


# -- hooks -------------------------------------------------------------------------------


def test_a_hook_that_is_called_three_times_closes_once(
    tracked: Any, platform: LocalPlatform, evaluations: Evaluations, name: str
) -> None:
    @tracked()
    def entrypoint() -> None:
        current_run().log_episodes([rollout(1)])
        raise ValueError("fails")

    state = entrypoint(return_state=True)
    (evaluation,) = evaluations.named(name)
    before = evaluations(evaluation["id"])
    written = len([each for each in platform.requests if each.method == "PUT"])
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(state.state_details.flow_run_id)
    for _ in range(3):
        close_evaluation_of_run(entrypoint, flow_run, state)

    assert evaluations(evaluation["id"]) == before
    assert len([each for each in platform.requests if each.method == "PUT"]) == written


def test_a_living_run_that_was_marked_crashed_still_completes(
    tracked: Any, evaluations: Evaluations, name: str
) -> None:
    @tracked()
    def entrypoint() -> None:
        run = current_run()
        run.log_episodes([rollout(1)])
        with get_client(sync_client=True) as client:
            evaluation = evaluations(run.id or "")
            client.set_flow_run_state(the_flow_run_of(evaluation), Crashed(), force=True)
        run.log_episodes([rollout(2)])

    entrypoint(return_state=True)

    (evaluation,) = evaluations.named(name)
    assert evaluations(evaluation["id"])["status"] == "COMPLETED"
    assert numbers(evaluations.rows(evaluation["id"])) == {1: [1], 2: [1]}


def test_a_run_that_was_taken_for_dead_and_completes_has_that_recorded(
    tracked: Any, platform: LocalPlatform, evaluations: Evaluations, name: str
) -> None:
    @tracked()
    def entrypoint() -> None:
        run = current_run()
        run.log_episodes([rollout(1)])
        with platform.credentials.get_client() as client:
            client.update_evaluation(run.id or "", status="FAILED", error_message="looks dead")
        run.log_episodes([rollout(2)])

    state = entrypoint(return_state=True)

    (evaluation,) = evaluations.named(name)
    after = evaluations(evaluation["id"])
    assert state.is_completed()
    assert (after["status"], after["error_message"]) == ("FAILED", "looks dead")
    assert after["metadata"]["prime_runs"] == {"completed_later": True}
    assert numbers(evaluations.rows(evaluation["id"])) == {1: [1], 2: [1]}


# -- afterwards --------------------------------------------------------------------------


def test_a_run_can_be_asked_when_it_is_over(tracked: Any) -> None:
    runs: list[EvalRun] = []

    @tracked()
    def entrypoint() -> None:
        runs.append(current_run())
        current_run().log_episodes([rollout(1)])
        current_run().update_summary({"extra": 7})

    result = entrypoint()

    (run,) = runs
    assert (run.id, run.url, run.episodes_logged) == (result.evaluation_id, result.url, 1)
    assert run.summary == {**result.summary, "extra": 7}
    assert (run.errors, run.failed_records) == ([], {"traces": 0, "samples": 0})
    assert run.logged == Counter({1: 1})
