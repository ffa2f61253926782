"""Threads and evals of one process: nothing is lost, and nothing mixed up."""

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import guest_workers
import pytest
from guest_workers import by_worker
from support import Evaluations

from prefect_prime.flows import EvalResult, EvalRun, current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")


def test_many_threads_lose_nothing_and_keep_their_order(
    evaluate: Any, evaluations: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_SEGMENT_BYTES", "50000")

    def body(run: EvalRun) -> None:
        def work(worker: int) -> None:
            for each in guest_workers.rollouts(worker, 40):
                run.log_episodes([{**each, "run": {"id": f"producer-{worker}"}}])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))

    result = evaluate(body)

    rows = evaluations.rows(result.evaluation_id)
    assert by_worker(rows) == {str(worker): list(range(40)) for worker in range(8)}
    for row in rows:
        worker = row["example_id"].split("/")[0]
        assert row["info"]["native_wrapper"]["run"]["id"] == f"producer-{worker}"


def eval_of(platform: LocalPlatform, who: str, name: str, count: int = 5) -> Any:
    @eval_flow(environments=["toy"], credentials=platform.credentials, evaluation_name=name)
    async def entrypoint() -> None:
        run = current_run()
        for each in guest_workers.rollouts(who, count):
            await asyncio.sleep(0)
            assert current_run() is run
            current_run().log_episodes([each])

    return entrypoint


def test_two_evals_side_by_side_keep_apart(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    async def both() -> list[EvalResult]:
        evals = [eval_of(platform, who, f"side-{who}") for who in ("left", "right")]
        return await asyncio.gather(*(each() for each in evals))

    left, right = asyncio.run(both())

    assert left.evaluation_id != right.evaluation_id
    for result, who in ((left, "left"), (right, "right")):
        assert by_worker(evaluations.rows(result.evaluation_id)) == {who: list(range(5))}
        assert evaluations(result.evaluation_id)["status"] == "COMPLETED"
        assert not [tag for tag in evaluations(result.evaluation_id)["tags"] if "parent" in tag]


def test_two_evals_in_threads_keep_apart_one_failing(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    at_once = threading.Barrier(2)

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint(who: str) -> str | None:
        at_once.wait(60)
        current_run().log_episodes(guest_workers.rollouts(who, 5))
        at_once.wait(60)
        if who == "bad":
            raise ValueError("bad")
        return current_run().id

    with ThreadPoolExecutor(2) as pool:
        good, bad = (pool.submit(entrypoint, who, return_state=True) for who in ("good", "bad"))
        assert bad.result().is_failed()
        evaluation_id = good.result().result()

    assert by_worker(evaluations.rows(evaluation_id)) == {"good": list(range(5))}
    assert evaluations(evaluation_id)["status"] == "COMPLETED"


def test_a_nested_eval_is_one_of_its_own_and_tagged_with_its_parent(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    name = f"nested-{uuid4().hex[:8]}"
    inner_fails = [False, True]
    inner_ids: list[str] = []

    @eval_flow(environments=["toy"], credentials=platform.credentials, evaluation_name=name)
    def inner(fails: bool) -> None:  # noqa: FBT001 - a flow's parameter
        inner_ids.append(current_run().id or "")
        current_run().log_episodes(guest_workers.rollouts("inner", 2))
        if fails:
            raise ValueError("inner")

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def outer() -> None:
        run = current_run()
        run.log_episodes(guest_workers.rollouts("outer", 1))
        for fails in inner_fails:
            inner(fails, return_state=True)
        assert current_run() is run
        run.log_episodes([episode(rewards=0.0, example_id="outer/1")])

    result = outer()

    around = evaluations(result.evaluation_id)
    parent = f"prefect-parent:{around['metadata']['prefect']['flow_run_id']}"
    assert by_worker(evaluations.rows(result.evaluation_id)) == {"outer": [0, 1]}
    assert (around["status"], parent in around["tags"]) == ("COMPLETED", False)
    for evaluation_id, status in zip(inner_ids, ("COMPLETED", "FAILED"), strict=True):
        evaluation = evaluations(evaluation_id)
        assert (evaluation["status"], parent in evaluation["tags"]) == (status, True)
        assert by_worker(evaluations.rows(evaluation_id)) == {"inner": [0, 1]}
    assert Counter(inner_ids)[result.evaluation_id] == 0
