"""The public API as a type checker sees it. Checked by `make types`, never run.

A line here is a promise: what a person writes against these names keeps checking.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, assert_type

from prefect import Flow
from prime_traces import TracesClient

from prefect_prime import errors
from prefect_prime.blocks import PrimeCredentials
from prefect_prime.credentials import Credentials
from prefect_prime.flows import EvalResult, EvalRun, current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.metrics import RunSummary, from_episodes
from prefect_prime.platform_client import PlatformClient
from prefect_prime.records import episode

A_FLOW: Flow[..., Any]


@eval_flow(
    environments=["gsm8k", "owner/name", {"id": "env-1", "version_id": "v1"}],
    model="{model}",
    evaluation_name="gsm8k-{model}",
    framework="verifiers",
    tags=["nightly"],
    config="eval.toml",
    credentials="prime-prod",
    expected="{n}",
    on_error="warn",
    retries=1,
    retry_delay_seconds=30,
)
def nightly(model: str, n: int = 100) -> None:
    run = current_run()
    assert_type(run, EvalRun)
    assert_type(run.id, str | None)
    assert_type(run.url, str | None)
    assert_type(run.name, str)
    assert_type(run.attempt, int)
    run.log_episodes([{"id": f"{model}-{n}"}])
    run.log_traces([{"id": model}])
    run.update_summary({"avg_metrics": {"pass@1": 0.71}})
    assert_type(run.flush(5.0), bool)
    assert_type(run.summary, dict[str, Any])
    assert_type(run.episodes_logged, int)
    assert_type(run.pending_records, dict[str, int])
    assert_type(run.failed_records, dict[str, int])
    assert_type(run.rejected_records, int)
    assert_type(run.dropped_records, int)
    assert_type(run.errors, list[str])


@eval_flow(environments=["gsm8k"])
async def asynchronous() -> None:
    assert_type(await current_run().aflush(5.0), bool)


@eval_flow(environments=["gsm8k"])
def generator() -> Iterator[Mapping[str, Any]]:
    yield {}


@eval_flow(environments=["gsm8k"])
async def async_generator() -> AsyncIterator[Mapping[str, Any]]:
    yield {}


@eval_flow
def without_parentheses() -> None: ...


A_FLOW = nightly
A_FLOW = asynchronous
A_FLOW = generator
A_FLOW = async_generator
A_FLOW = without_parentheses
A_FLOW = nightly.with_options(environments=["other"], retries=3)


def a_result(result: EvalResult) -> None:
    assert_type(result.evaluation_id, str | None)
    assert_type(result.url, str | None)
    assert_type(result.status, str)
    assert_type(result.episodes, int)


def the_block(block: PrimeCredentials) -> None:
    assert_type(PrimeCredentials.from_environment(), PrimeCredentials)
    assert_type(block.get_client(), PlatformClient)
    assert_type(block.get_traces_client(), TracesClient)


def the_embedded_platform() -> None:
    with LocalPlatform() as platform:
        assert_type(platform, LocalPlatform)
        assert_type(platform.url, str)
        assert_type(platform.credentials, Credentials)


def records_and_metrics() -> None:
    made = episode()
    assert_type(made, dict[str, Any])
    assert_type(from_episodes([made]), RunSummary)


def the_errors(error: errors.PrefectPrimeError) -> Exception:
    return error
