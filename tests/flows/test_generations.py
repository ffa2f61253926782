"""After an evaluation that is closed comes the next one, which takes everything over."""

from pathlib import Path
from typing import Any

import pytest
from support import Evaluations
from tracked import numbers, read_flow_run, rollout, run_again, the_flow_run_of

from prefect_prime.errors import UploadFailedError
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server")


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
    tags = set(read_flow_run(the_flow_run_of(before)).tags)
    assert tags == {"prime", f"prime-eval:{second['id']}"}


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


@pytest.mark.parametrize("fails", [True, False], ids=["failed", "completed and removed"])
def test_without_the_spool_the_next_one_is_opened_and_names_the_one_before(
    tracked: Any,
    evaluations: Evaluations,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    fails: bool,
) -> None:
    failing = [fails, False]

    @tracked()
    def entrypoint() -> None:
        current_run().log_episodes([rollout(1)])
        if failing.pop(0):
            raise RuntimeError("the machine is on fire")

    entrypoint(return_state=True)
    flow_run_id = the_flow_run_of(evaluations.only(name))
    if fails:
        monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", str(tmp_path / "another machine's"))
    run_again(entrypoint, flow_run_id)

    second, first = evaluations.named(name)
    assert first["status"] == ("FAILED" if fails else "COMPLETED")
    assert second["status"] == "COMPLETED"
    assert f"retry-of:{first['id']}" in second["tags"]
    assert f"prefect-flow-run:{flow_run_id}:2" in second["tags"]
    assert [row["example_id"] for row in evaluations.rows(second["id"])] == [1]


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
