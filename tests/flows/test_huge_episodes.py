"""Episodes of 51 and 70 MiB among small ones, over real HTTP: named, and the rest is intact."""

import logging
from typing import Any

import pytest
from support import Evaluations, the_traces_of

from prefect_prime.flows import EvalRun, current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")
MIB = 1024 * 1024


def hello(identity: str, characters: int) -> dict[str, Any]:
    made = episode([{"role": "user", "content": "?"}], rewards=1.0, example_id=1)
    (trace,) = made["traces"]
    screenshot = {"screenshot": "x" * characters}
    return {
        **made,
        "id": identity,
        "traces": [{**trace, "id": f"{identity}-trace", "info": screenshot}],
    }


def test_huge_episodes_cost_none_of_their_neighbours(
    platform: LocalPlatform, evaluations: Evaluations, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[EvalRun] = []

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        runs.append(current_run())
        for number in range(10):
            runs[0].log_episodes([hello(f"small-{number}", 100)])
            if number == 3:
                runs[0].log_episodes([hello("screenshots", 51 * MIB)])
            if number == 6:
                runs[0].log_episodes([hello("too-large", 70 * MIB)])

    state = entrypoint(return_state=True)

    result, (run,) = state.result(), runs
    small = {f"small-{number}" for number in range(10)}
    rows = {row["sample_id"] for row in evaluations.rows(result.evaluation_id)}
    traces = {each.removesuffix("-trace") for each in the_traces_of(platform, result.evaluation_id)}
    # A line of 64 MiB is the most that Prime Traces takes; a row of 25 MiB the samples table.
    assert rows == small
    assert traces == small | {"screenshots"}
    assert run.stored_records == {"traces": 11, "samples": 10}
    assert run.failed_records == {"traces": 1, "samples": 2}
    assert result.status == "COMPLETED"
    assert "1 not stored by traces, 2 not stored by samples" in state.message
    errors = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert any("too-large" in error and "traces sink" in error for error in errors)
    assert any("screenshots" in error and "51.0 MiB" in error for error in errors)
