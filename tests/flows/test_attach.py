"""Logging into an evaluation that somebody else opened, and will close."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from eval_processes import EvalProcesses
from prefect.states import Cancelled
from support import Evaluations

from prefect_prime.environments import EnvironmentRef, resolve
from prefect_prime.flows import current_run, eval_flow, hosted
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def opened(platform: LocalPlatform) -> dict[str, Any]:
    """An evaluation of a launcher's, with metadata and metrics of its own."""
    with platform.credentials.get_client() as client:
        created = client.create_evaluation(
            name=f"launched-{uuid4().hex[:8]}",
            environments=resolve(client, [EnvironmentRef.parse("toy")]),
            tags=["launched"],
            metadata={"config_source": "theirs", "launcher": 7},
        )
        return client.get_evaluation(created["evaluation_id"])


@pytest.fixture
def handed(opened: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The same, handed to this process by its environment."""
    monkeypatch.setattr(hosted, "_claimed", set())
    monkeypatch.setenv("EVALUATION_ID", opened["id"])
    return opened


def changes(platform: LocalPlatform, evaluation_id: str) -> list[str]:
    """The requests that changed the evaluation itself."""
    path = f"/api/v1/evaluations/{evaluation_id}"
    return [
        f"{each.method} {each.path.removeprefix(path)}".strip()
        for each in platform.requests
        if each.path in {path, f"{path}/finalize"} and each.method != "GET"
    ]


def log(example: object = 1) -> None:
    current_run().log_episodes([episode(rewards=1.0, example_id=str(example))])


# -- evaluation_id= --------------------------------------------------------------------


def test_an_attached_eval_logs_and_changes_nothing_else(
    platform: LocalPlatform, evaluations: Evaluations, opened: dict[str, Any]
) -> None:
    created = len(evaluations.named(opened["name"]))

    @eval_flow(
        evaluation_id="{evaluation_id}",
        evaluation_name=opened["name"],
        credentials=platform.credentials,
    )
    def entrypoint(evaluation_id: str) -> None:
        assert current_run().id == evaluation_id
        log()
        current_run().update_summary({"mine": 1})

    result = entrypoint(opened["id"])

    after = evaluations(opened["id"])
    assert len(evaluations.rows(opened["id"])) == 1
    assert (result.evaluation_id, result.status, result.episodes) == (opened["id"], "RUNNING", 1)
    assert changes(platform, opened["id"]) == []
    kept = ("status", "name", "tags", "metadata", "metrics")
    assert {key: after.get(key) for key in kept} == {key: opened.get(key) for key in kept}
    assert len(evaluations.named(opened["name"])) == created


def test_an_attached_eval_that_fails_leaves_it_open(
    platform: LocalPlatform, evaluations: Evaluations, opened: dict[str, Any]
) -> None:
    @eval_flow(
        environments=["toy"],
        evaluation_id=opened["id"],
        credentials=platform.credentials,
        retries=1,
    )
    def entrypoint() -> None:
        log(current_run().attempt)
        raise ValueError("not their fault")

    assert entrypoint(return_state=True).is_failed()

    assert changes(platform, opened["id"]) == []
    assert evaluations(opened["id"])["status"] == opened["status"]
    assert len(evaluations.rows(opened["id"])) == 2


@pytest.mark.parametrize("nothing", [None, ""], ids=["None", "empty"])
def test_without_an_evaluation_to_attach_to_one_is_opened(
    platform: LocalPlatform, evaluations: Evaluations, nothing: str | None
) -> None:
    @eval_flow(
        environments=["toy"], evaluation_id="{evaluation_id}", credentials=platform.credentials
    )
    def entrypoint(evaluation_id: str | None) -> None:
        log(evaluation_id)

    result = entrypoint(nothing)

    assert evaluations(result.evaluation_id)["status"] == "COMPLETED"


def test_two_attached_evals_and_their_opener_share_one_evaluation(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    @eval_flow(evaluation_id="{to}", credentials=platform.credentials)
    def part(to: str, number: int) -> None:
        assert current_run().id == to
        log(f"part {number}")

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def whole() -> None:
        for number in range(2):
            part(current_run().id, number)
        log("whole")

    result = whole()

    rows = evaluations.rows(result.evaluation_id)
    assert sorted(row["example_id"] for row in rows) == ["part 0", "part 1", "whole"]
    assert evaluations(result.evaluation_id)["status"] == "COMPLETED"


# -- $EVALUATION_ID --------------------------------------------------------------------


def test_a_handed_evaluation_is_used_and_completed(
    platform: LocalPlatform, evaluations: Evaluations, handed: dict[str, Any]
) -> None:
    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        assert current_run().id == handed["id"]
        log()
        current_run().update_summary({"mine": 1})

    result = entrypoint()

    after = evaluations(handed["id"])
    assert (result.evaluation_id, result.status) == (handed["id"], "COMPLETED")
    assert after["status"] == "COMPLETED"
    assert (after["metadata"], after["tags"]) == (handed["metadata"], handed["tags"])
    assert (after["metrics"]["avg_reward"], after["metrics"]["mine"]) == (1.0, 1)
    assert len(evaluations.rows(handed["id"])) == 1


@pytest.mark.parametrize("how", ["raises", "is cancelled"])
def test_any_other_end_of_a_handed_evaluation_is_the_launcher_s_to_see(
    platform: LocalPlatform, evaluations: Evaluations, handed: dict[str, Any], how: str
) -> None:
    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> Any:
        log()
        if how == "raises":
            raise ValueError("fails")
        return Cancelled()

    entrypoint(return_state=True)

    assert changes(platform, handed["id"]) == []
    assert evaluations(handed["id"])["status"] == handed["status"]
    assert len(evaluations.rows(handed["id"])) == 1


def test_a_retry_stays_with_the_handed_evaluation(
    platform: LocalPlatform, evaluations: Evaluations, handed: dict[str, Any]
) -> None:
    @eval_flow(environments=["toy"], credentials=platform.credentials, retries=1)
    def entrypoint() -> None:
        log(current_run().attempt)
        if current_run().attempt == 1:
            raise ValueError("once")

    entrypoint()

    assert evaluations(handed["id"])["status"] == "COMPLETED"
    assert len(evaluations.rows(handed["id"])) == 2


def test_only_the_first_outermost_eval_takes_it(
    platform: LocalPlatform, evaluations: Evaluations, handed: dict[str, Any]
) -> None:
    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def inner() -> str | None:
        log("inner")
        return current_run().id

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def outer() -> tuple[str | None, Any]:
        log("outer")
        return current_run().id, inner()

    outer_id, inner_id = outer()
    later_id = inner()

    assert outer_id == handed["id"]
    assert len({outer_id, inner_id, later_id}) == 3
    assert [row["example_id"] for row in evaluations.rows(handed["id"])] == ["outer"]
    for evaluation_id in (outer_id, inner_id, later_id):
        assert evaluations(evaluation_id)["status"] == "COMPLETED"


def test_of_two_side_by_side_one_takes_it(
    platform: LocalPlatform, evaluations: Evaluations, handed: dict[str, Any]
) -> None:
    @eval_flow(environments=["toy"], credentials=platform.credentials)
    async def entrypoint() -> str | None:
        log()
        await asyncio.sleep(0)
        return current_run().id

    async def both() -> list[Any]:
        return await asyncio.gather(entrypoint(), entrypoint())

    ids = asyncio.run(both())

    assert len(set(ids)) == 2
    assert handed["id"] in ids
    assert {evaluations(each)["status"] for each in ids} == {"COMPLETED"}


KILLED = """
import os, signal
from tracked import rollout
from prefect_prime.flows import current_run, eval_flow

@eval_flow(environments=["toy"])
def entrypoint():
    current_run().log_episodes([rollout(1)])
    os.kill(os.getpid(), signal.SIGTERM)

entrypoint()
"""


@pytest.mark.usefixtures("account")
def test_a_handed_evaluation_of_a_process_that_is_terminated_keeps_its_status(
    eval_processes: EvalProcesses,
    platform: LocalPlatform,
    evaluations: Evaluations,
    opened: dict[str, Any],
) -> None:
    done = eval_processes.run(KILLED, env={"EVALUATION_ID": opened["id"]})

    assert len(evaluations.rows(opened["id"])) == 1, done.output
    assert changes(platform, opened["id"]) == []
    assert evaluations(opened["id"])["status"] == opened["status"]
