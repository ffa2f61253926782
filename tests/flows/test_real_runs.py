"""Genuine verifiers output arrives with every value that the reference gives it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from prime_traces import TracesClient
from support import (
    DATA,
    Evaluations,
    canonical,
    episodes_of,
    expected_rows,
    expected_summary,
)
from verifiers.v1.episode import WireEpisode

from prefect_prime.flows import EvalResult, current_run, eval_flow
from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server")


def one_by_one(platform: LocalPlatform, episodes: list[Any]) -> EvalResult:
    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> Iterator[Any]:
        yield from episodes

    result: EvalResult = entrypoint()
    return result


def in_one_list(platform: LocalPlatform, episodes: list[Any]) -> EvalResult:
    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        current_run().log_episodes(episodes)

    result: EvalResult = entrypoint()
    return result


def from_an_async_generator(platform: LocalPlatform, episodes: list[Any]) -> EvalResult:
    @eval_flow(environments=["toy"], credentials=platform.credentials)
    async def entrypoint() -> AsyncIterator[Any]:
        for episode in episodes:
            yield episode

    result: EvalResult = asyncio.run(entrypoint())
    return result


def verifiers_objects(platform: LocalPlatform, episodes: list[Any]) -> EvalResult:
    return one_by_one(platform, [WireEpisode.model_validate(each) for each in episodes])


@pytest.mark.parametrize(
    "way", [one_by_one, in_one_list, from_an_async_generator, verifiers_objects]
)
def test_rows_and_metrics_equal_the_reference(
    way: Any, real_run: Path, platform: LocalPlatform, evaluations: Evaluations
) -> None:
    episodes = episodes_of(real_run)

    result = way(platform, episodes)

    evaluation = evaluations(result.evaluation_id or "")
    assert evaluation["status"] == "COMPLETED"
    rows = evaluations.rows(evaluation["id"])
    assert canonical(rows) == canonical(expected_rows(real_run))
    expected = expected_summary(real_run)
    metrics = evaluation["metrics"]
    assert metrics.pop("avg_metrics") == pytest.approx(expected.pop("avg_metrics"))
    assert {key: metrics[key] for key in expected} == pytest.approx(expected)
    with platform.credentials.get_traces_client() as traces:
        assert_traces_arrived(traces, evaluation["id"], episodes)


def assert_traces_arrived(
    client: TracesClient, evaluation_id: str, episodes: list[dict[str, Any]]
) -> None:
    for episode in episodes:
        assert client.get_episode(episode["id"]).traces.trace_count == len(episode["traces"])
        for trace in episode["traces"]:
            raw = json.loads(client.get_raw(trace["id"]))
            assert raw.pop("run")["id"] == evaluation_id
            assert raw == trace


def test_bare_traces_reach_the_traces_only(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    traces = [trace for episode in episodes_of(DATA / "multi") for trace in episode["traces"]]

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        current_run().log_traces(traces)

    result = entrypoint()

    assert evaluations.rows(result.evaluation_id) == []
    with platform.credentials.get_traces_client() as client:
        stored = client.list(run_id=result.evaluation_id, limit=100).items
    assert {each.trace_id for each in stored} == {each["id"] for each in traces}
    assert result.losses == {
        "traces": {"failed": 0, "pending": 0},
        "samples": {"failed": 0, "pending": 0},
    }


def test_v0_sample_rows_reach_the_samples_only(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    rows = expected_rows(DATA / "clean")

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        current_run().log_episodes(rows)

    result = entrypoint()

    assert canonical(evaluations.rows(result.evaluation_id)) == canonical(rows)
    with platform.credentials.get_traces_client() as client:
        assert client.list(run_id=result.evaluation_id).items == []
    expected = expected_summary(DATA / "clean")
    assert evaluations(result.evaluation_id)["metrics"]["avg_reward"] == expected["avg_reward"]
