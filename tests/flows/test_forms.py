"""An eval becomes a tracked run, whatever form its entrypoint has."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from prefect import flow
from support import DATA, Evaluations, canonical, episodes_of, expected_rows, expected_summary

from prefect_prime.errors import ConfigurationError
from prefect_prime.flows import EvalResult, current_run, eval_flow
from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server")
CLEAN = DATA / "clean"


def tracked(platform: LocalPlatform, **options: Any) -> Any:
    return eval_flow(environments=["toy"], credentials=platform.credentials, **options)


def assert_is_the_clean_run(result: EvalResult, evaluations: Evaluations) -> None:
    evaluation = evaluations(result.evaluation_id or "")
    assert evaluation["status"] == "COMPLETED"
    assert canonical(evaluations.rows(evaluation["id"])) == canonical(expected_rows(CLEAN))
    metrics = evaluation["metrics"]
    assert {key: metrics[key] for key in expected_summary(CLEAN)} == expected_summary(CLEAN)
    assert metrics["prime_runs"] == {"traces_episodes_written": 12}


def test_a_function_logs_into_the_current_run(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    @tracked(platform)
    def entrypoint() -> None:
        current_run().log_episodes(episodes_of(CLEAN))

    assert_is_the_clean_run(entrypoint(), evaluations)


def test_a_coroutine_logs_into_the_current_run(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    @tracked(platform)
    async def entrypoint() -> None:
        for episode in episodes_of(CLEAN):
            await asyncio.sleep(0)
            current_run().log_episodes([episode])

    assert_is_the_clean_run(asyncio.run(entrypoint()), evaluations)


def test_a_generator_yields_episodes(platform: LocalPlatform, evaluations: Evaluations) -> None:
    @tracked(platform)
    def entrypoint() -> Iterator[Any]:
        first, *rest = episodes_of(CLEAN)
        yield first
        yield rest

    assert_is_the_clean_run(entrypoint(), evaluations)


def test_an_async_generator_yields_episodes(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    @tracked(platform)
    async def entrypoint() -> AsyncIterator[Any]:
        for episode in episodes_of(CLEAN):
            yield episode

    assert_is_the_clean_run(asyncio.run(entrypoint()), evaluations)


def test_the_value_that_an_entrypoint_returns_is_passed_through(platform: LocalPlatform) -> None:
    @tracked(platform)
    def entrypoint() -> dict[str, int]:
        return {"answer": 42}

    assert entrypoint() == {"answer": 42}


def test_a_flow_that_exists_keeps_its_options(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    @tracked(platform)
    @flow(name="mine", retries=3, retry_delay_seconds=7, log_prints=True, timeout_seconds=60)
    def entrypoint() -> None:
        current_run().log_episodes(episodes_of(CLEAN))

    assert entrypoint.name == "mine"
    assert (entrypoint.retries, entrypoint.retry_delay_seconds) == (3, 7)
    assert (entrypoint.log_prints, entrypoint.timeout_seconds) == (True, 60)
    assert_is_the_clean_run(entrypoint(), evaluations)


def test_without_parentheses_the_function_is_a_flow_that_says_what_is_missing() -> None:
    @eval_flow
    def entrypoint() -> None: ...

    with pytest.raises(ConfigurationError, match="at least one environment"):
        entrypoint()


def test_current_run_outside_a_run_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="pass `run`"):
        current_run()
