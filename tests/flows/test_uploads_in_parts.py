"""What a service does not take as a whole goes in parts; whoever is to blame is named alone."""

import logging
from typing import Any

import pytest
from support import Evaluations

from prefect_prime.errors import APIError, ForbiddenError
from prefect_prime.flows import EvalRun, current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.local.rules import Limits
from prefect_prime.records import episode
from prefect_prime.splitting import MOST_BLAMED, send_in_parts

pytestmark = pytest.mark.usefixtures("prefect_server")


def hello(number: int, *, characters: int = 10, identity: str | None = None) -> dict[str, Any]:
    made = episode([{"role": "user", "content": "x" * characters}], rewards=1.0, example_id=number)
    return {**made, "id": identity or f"episode-{number}"}


def tracked(platform: LocalPlatform, records: list[dict[str, Any]], **options: Any) -> Any:
    runs: list[EvalRun] = []

    @eval_flow(environments=["toy"], credentials=platform.credentials, **options)
    def entrypoint() -> None:
        runs.append(current_run())
        runs[0].log_episodes(records)

    state = entrypoint(return_state=True)
    return state, state.result(raise_on_failure=False), runs[0]


def stored(platform: LocalPlatform, evaluation_id: str) -> tuple[list[str], list[str]]:
    """The ids of the episodes in the samples and in the traces."""
    with platform.credentials.get_client() as client:
        rows = [row["sample_id"] for row in Evaluations(client).rows(evaluation_id)]
    with platform.credentials.get_traces_client() as client:
        items = client.list(run_id=evaluation_id, limit=100).items
    return sorted(rows), sorted({item.episode_id for item in items})


def test_a_request_too_large_for_a_gateway_is_split_until_it_fits() -> None:
    records = [hello(number, characters=3000) for number in range(20)]
    with LocalPlatform(limits=Limits(json_body=30_000, traces_body=3_000)) as platform:
        _, result, run = tracked(platform, records)

        everything = sorted(record["id"] for record in records)
        assert stored(platform, result.evaluation_id) == (everything, everything)
    assert run.failed_records == {"traces": 0, "samples": 0}
    assert result.status == "COMPLETED"


def test_a_record_that_a_sink_refuses_costs_none_of_its_neighbours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    long = "long-" + "x" * 300
    records = [hello(1), hello(2, identity=long), hello(3, characters=40_000), hello(4)]
    with LocalPlatform(limits=Limits(json_body=30_000, identifier=100)) as platform:
        state, result, run = tracked(platform, records)
        samples, traces = stored(platform, result.evaluation_id)

    # The samples take any id, the traces any size up to 64 MiB.
    assert samples == sorted(["episode-1", "episode-4", long])
    assert traces == ["episode-1", "episode-3", "episode-4"]
    assert run.failed_records == {"traces": 1, "samples": 1}
    assert "1 not stored by traces, 1 not stored by samples" in state.message
    errors = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert any(long in error for error in errors)
    assert any("episode-3" in error and "413" in error for error in errors)


def test_a_key_that_is_refused_is_said_once_and_not_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_SEGMENT_BYTES", "500")
    with LocalPlatform(traces="forbidden") as platform:
        _, result, run = tracked(platform, [hello(number) for number in range(10)])
        refusals = [each for each in platform.requests if each.status == 403]
        with platform.credentials.get_client() as client:
            rows = Evaluations(client).rows(result.evaluation_id)

    assert len(rows) == 10
    assert run.failed_records == {"traces": 10, "samples": 0}
    assert run.pending_records == {"traces": 0, "samples": 0}
    assert len(refusals) == 1
    said = [each for each in caplog.records if "were not stored by" in each.getMessage()]
    assert len(said) == 1


# -- the halving itself ------------------------------------------------------------------


class Service:
    """Refuses what holds a bad number, or too many of any."""

    def __init__(self, bad: set[int], most: int = 1000) -> None:
        self.bad, self.most = bad, most
        self.stored: list[int] = []
        self.calls = 0

    def __call__(self, positions: range) -> None:
        self.calls += 1
        if len(positions) > self.most:
            raise APIError("too large", status_code=413)
        if found := self.bad & set(positions):
            raise APIError(f"{min(found)} is bad", status_code=422)
        self.stored += positions


@pytest.mark.parametrize("bad", [set(), {0}, {99}, {0, 1, 50}, {33, 66}])
def test_the_good_are_stored_in_order_and_the_bad_are_named(bad: set[int]) -> None:
    service = Service(bad, most=64)

    blamed = send_in_parts(100, service)

    assert service.stored == [number for number in range(100) if number not in bad]
    assert blamed == {number: f"{number} is bad" for number in bad}


def test_a_service_that_refuses_everything_is_not_asked_about_each_record() -> None:
    service = Service(set(range(10_000)))

    blamed = send_in_parts(10_000, service)

    assert len(blamed) == 10_000
    assert service.calls < 3 * MOST_BLAMED + 20


@pytest.mark.parametrize("status", [401, 403, 409, 500, 502])
def test_what_is_not_about_the_records_is_not_split(status: int) -> None:
    calls = 0

    def refuse(_: range) -> None:
        nonlocal calls
        calls += 1
        raise ForbiddenError("no", status_code=status)

    with pytest.raises(ForbiddenError):
        send_in_parts(10, refuse)
    assert calls == 1
