"""A flow run is retried in the same process: what is kept, and what is done again."""

from collections import Counter
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Failed
from support import Evaluations
from tracked import numbers, rollout

from prefect_prime.flows import EvalRun, current_run
from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server")


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
