"""Whatever happens, each sink's numbers add up to what was logged."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from faulty_proxy import Fault, FaultyProxy
from support import Evaluations, the_traces_of

from prefect_prime.flows import EvalRun, current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.local.rules import Limits
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")

EPISODES = 6


def everything() -> list[tuple[str, Any]]:
    """Records of every kind: good ones, some that a sink refuses, some that cannot be stored."""
    episodes = [
        episode([{"role": "user", "content": "?"}], rewards=1.0, example_id=number)
        for number in range(EPISODES)
    ]
    too_long = {**episodes[0], "id": "x" * 300}
    too_large = episode([{"role": "user", "content": "x" * 40_000}], rewards=0.0, example_id=99)
    circular: dict[str, Any] = {"id": "circular", "traces": []}
    circular["info"] = circular
    return [
        *(("log_episodes", each) for each in episodes),
        ("log_episodes", {**episodes[0], "id": "without traces", "traces": []}),
        ("log_episodes", {**too_long, "traces": [{**too_long["traces"][0], "id": "t-long"}]}),
        ("log_episodes", too_large),
        ("log_episodes", circular),
        ("log_episodes", {"sample_id": "v0", "reward": 1.0}),
        ("log_traces", {**episodes[1]["traces"][0], "id": "bare"}),
    ]


@dataclass
class Case:
    """A platform, and what the numbers of each sink are: stored, failed, pending, skipped."""

    traces: tuple[int, int, int, int]
    samples: tuple[int, int, int, int]
    access: Literal["enabled", "not_enabled", "forbidden"] = "enabled"
    sinks: str = "traces,samples"
    fault: Callable[[str, str], Fault | None] = lambda _method, _path: None


def no_samples(method: str, path: str) -> Fault | None:
    return "502 before" if method == "POST" and path.endswith("/samples") else None


def nothing_at_all(_method: str, _path: str) -> Fault | None:
    return "reset before"


def every_third() -> Callable[[str, str], Fault | None]:
    seen = 0

    def decide(method: str, _path: str) -> Fault | None:
        nonlocal seen
        seen += method == "POST"
        faults: list[Fault] = [
            "502 after",
            "html after",
            "429 before",
            "reset after",
            "html before",
        ]
        return faults[seen // 3 % 5] if method == "POST" and seen % 3 == 0 else None

    return decide


# Of the 12 records one is rejected. Traces take no v0 sample, samples take no bare trace and
# have no row for an episode without traces. The long id is too long for the traces, the large
# episode for the samples.
CASES = {
    "healthy": Case(traces=(9, 1, 0, 1), samples=(8, 1, 0, 2)),
    "traces off": Case(traces=(0, 0, 0, 11), samples=(8, 1, 0, 2), access="not_enabled"),
    "traces refused": Case(traces=(0, 10, 0, 1), samples=(8, 1, 0, 2), access="forbidden"),
    "traces alone": Case(traces=(9, 1, 0, 1), samples=(0, 0, 0, 11), sinks="traces"),
    "samples alone": Case(traces=(0, 0, 0, 11), samples=(8, 1, 0, 2), sinks="samples"),
    "auto, traces off": Case(
        traces=(0, 0, 0, 11), samples=(8, 1, 0, 2), sinks="auto", access="not_enabled"
    ),
    "samples away": Case(traces=(9, 1, 0, 1), samples=(0, 0, 10, 1), fault=no_samples),
    "all away": Case(traces=(0, 0, 10, 1), samples=(0, 0, 10, 1), fault=nothing_at_all),
    "every third answer is lost": Case(
        traces=(9, 1, 0, 1), samples=(8, 1, 0, 2), fault=every_third()
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_was_logged_is_all_accounted_for(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_PRIME_SINKS", case.sinks)
    monkeypatch.setenv("PREFECT_PRIME_SEGMENT_BYTES", "2000")
    waits = case.fault in {no_samples, nothing_at_all}
    monkeypatch.setenv("PREFECT_PRIME_DRAIN_TIMEOUT", "1" if waits else "120")
    monkeypatch.setattr("prefect_prime.creation.SETTLE_TIME", 0.2)
    limits = Limits(json_body=30_000, identifier=100)
    runs: list[EvalRun] = []
    with ExitStack() as stack:
        platform = stack.enter_context(LocalPlatform(traces=case.access, limits=limits))
        proxy = stack.enter_context(FaultyProxy(platform, case.fault))

        @eval_flow(environments=["toy"], credentials=proxy.credentials)
        def entrypoint() -> None:
            runs.append(current_run())
            for operation, record in everything():
                getattr(runs[0], operation)([record])

        result = entrypoint(return_state=True).result()
        (run,) = runs
        logged = len(everything())
        for sink, expected in {"traces": case.traces, "samples": case.samples}.items():
            found = (
                run.stored_records[sink],
                run.failed_records[sink],
                run.pending_records[sink],
                run.skipped_records[sink],
            )
            assert found == expected, sink
            assert sum(found) + run.rejected_records + run.dropped_records == logged
        if result.evaluation_id is None or result.status == "RUNNING":
            return
        evaluation_id = result.evaluation_id
        with platform.credentials.get_client() as client:
            evaluation = client.get_evaluation(evaluation_id)
            rows = Evaluations(client).rows(evaluation_id)
        written = evaluation["metadata"]["prefect"]["records"]
        assert written["samples"] == dict(
            zip(("stored", "failed", "skipped", "pending"), reorder(case.samples), strict=True)
        )
        assert len(rows) == len({row["sample_id"] for row in rows}) == case.samples[0]
        if case.access == "enabled":
            assert len(the_traces_of(platform, evaluation_id)) == max(0, case.traces[0] - 1)


def reorder(numbers: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    stored, failed, pending, skipped = numbers
    return stored, failed, skipped, pending
