"""What the platform does to uploads, and what a person sees of it."""

import logging
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from support import DATA, Evaluations, canonical, episodes_of, expected_rows, wait_until

from prefect_prime.errors import UploadFailedError
from prefect_prime.flows import EvalRun, current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")
CLEAN = DATA / "clean"


def log_the_clean_run(platform: LocalPlatform, **options: Any) -> Any:
    @eval_flow(environments=["toy"], credentials=platform.credentials, **options)
    def entrypoint() -> None:
        current_run().log_episodes(episodes_of(CLEAN))

    return entrypoint


def rows(platform: LocalPlatform, evaluation_id: str) -> list[dict[str, Any]]:
    with platform.credentials.get_client() as client:
        return Evaluations(client).rows(evaluation_id)


def task_runs(flow_run_id: Any) -> dict[str, str]:
    """The flow run's task runs: state by name. The server learns of them a little later."""
    with get_client(sync_client=True) as client:

        def closed() -> dict[str, str] | None:
            runs = client.read_task_runs(
                flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
            )
            states = {run.name: run.state for run in runs if run.state is not None}
            if not all(state.is_final() for state in states.values()):
                return None
            names = {name: state.name for name, state in states.items()}
            return names if any(name.startswith("close") for name in names) else None

        return wait_until(closed)


def test_the_flow_run_shows_how_the_evaluation_got_there(
    platform: LocalPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_SEGMENT_BYTES", "20000")
    state = log_the_clean_run(platform)(return_state=True)
    evaluation_id = state.result().evaluation_id

    names = task_runs(state.state_details.flow_run_id)

    assert set(names) == {
        "open evaluation toy",
        "upload traces 1 · 5 episodes · <0.1 MB",
        "upload traces 2 · 5 episodes · <0.1 MB",
        "upload traces 3 · 2 episodes · <0.1 MB",
        "upload samples 1 · 5 episodes · <0.1 MB",
        "upload samples 2 · 5 episodes · <0.1 MB",
        "upload samples 3 · 2 episodes · <0.1 MB",
        f"close evaluation {evaluation_id} COMPLETED",
    }
    assert set(names.values()) == {"Completed"}


def test_records_stream_while_the_eval_runs(
    platform: LocalPlatform, evaluations: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_SEGMENT_AGE", "0.2")

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        run = current_run()
        for expected in (1, 2):
            run.log_episodes([episode(rewards=1.0)])
            wait_until(lambda: len(evaluations.rows(run.id or "")) == expected)  # noqa: B023 - called at once

    assert entrypoint().episodes == 2


def test_flush_says_whether_all_is_sent(platform: LocalPlatform, evaluations: Evaluations) -> None:
    @eval_flow(environments=["toy"], credentials=platform.credentials)
    async def entrypoint() -> None:
        run = current_run()
        run.log_episodes([episode(rewards=1.0)])
        assert await run.aflush() is True
        assert len(evaluations.rows(run.id or "")) == 1
        assert run.pending_records == {"traces": 0, "samples": 0}

    import asyncio  # noqa: PLC0415 - only here

    asyncio.run(entrypoint())


def test_an_account_without_traces_loses_nothing_and_is_told_so_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LocalPlatform(traces="not_enabled") as platform:
        state = log_the_clean_run(platform)(return_state=True)
        result = state.result()

        assert canonical(rows(platform, result.evaluation_id)) == canonical(expected_rows(CLEAN))
    assert result.losses["traces"] == {"failed": 0, "pending": 0}
    assert result.status == "COMPLETED"
    told = [record for record in caplog.records if "Prime Traces is off" in record.message]
    assert {record.levelname for record in told} == {"INFO"}
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    names = task_runs(state.state_details.flow_run_id)
    assert names["upload traces 1 · 12 episodes · <0.1 MB"] == "Skipped"


def test_in_auto_mode_samples_take_over_where_traces_are_not_enabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_SINKS", "auto")
    monkeypatch.setenv("PREFECT_PRIME_SEGMENT_BYTES", "10000")
    with LocalPlatform(traces="not_enabled") as platform:
        result = log_the_clean_run(platform)()

        assert canonical(rows(platform, result.evaluation_id)) == canonical(expected_rows(CLEAN))


def test_a_key_that_may_not_write_traces_is_an_error_that_costs_no_sample(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LocalPlatform(traces="forbidden") as platform:
        result = log_the_clean_run(platform)()

        assert canonical(rows(platform, result.evaluation_id)) == canonical(expected_rows(CLEAN))
    assert result.losses == {
        "traces": {"failed": 12, "pending": 0},
        "samples": {"failed": 0, "pending": 0},
    }
    assert "12 record(s) were not stored by the traces sink: refused" in caplog.text


def test_what_was_refused_stays_in_the_spool(own_home: Path) -> None:
    with LocalPlatform(traces="forbidden") as platform:
        log_the_clean_run(platform)()

    (segment,) = (own_home / ".prefect-prime" / "spool").glob("*/owner/*.jsonl")
    assert len(segment.read_bytes().splitlines()) == 12


def test_when_everything_has_arrived_the_spool_goes(
    platform: LocalPlatform, own_home: Path
) -> None:
    log_the_clean_run(platform)()

    left = [each.name for each in (own_home / ".prefect-prime" / "spool").iterdir()]
    assert left == ["store-id"]


def test_under_raise_a_failed_upload_fails_the_flow_run_and_the_evaluation() -> None:
    with LocalPlatform(traces="forbidden") as platform:
        with pytest.raises(UploadFailedError, match="traces sink: refused"):
            log_the_clean_run(platform, on_error="raise")()
        with platform.credentials.get_client() as client:
            (evaluation,) = client.list_evaluations()["evaluations"]

    assert evaluation["status"] == "FAILED"
    assert "traces sink: refused" in evaluation["error_message"]


def test_a_custom_platform_without_a_traces_url_gets_samples_and_one_warning(
    platform: LocalPlatform, evaluations: Evaluations, caplog: pytest.LogCaptureFixture
) -> None:
    known = platform.credentials
    alone = type(known)(api_key=known.api_key, base_url=known.base_url)

    @eval_flow(environments=["toy"], credentials=alone)
    def entrypoint() -> None:
        current_run().log_episodes(episodes_of(CLEAN))

    result = entrypoint()

    assert canonical(evaluations.rows(result.evaluation_id)) == canonical(expected_rows(CLEAN))
    assert len([each for each in caplog.records if "PRIME_TRACES_URL" in each.message]) == 1


def test_a_platform_that_is_away_at_the_start_costs_the_eval_nothing(own_home: Path) -> None:
    with LocalPlatform() as platform:
        gone = platform.credentials

    @eval_flow(environments=["toy"], credentials=gone)
    def entrypoint() -> None:
        current_run().log_episodes(episodes_of(CLEAN))

    state = entrypoint(return_state=True)

    result = state.result()
    assert (result.status, result.evaluation_id, result.episodes) == ("OFFLINE", None, 12)
    assert result.losses["samples"] == {"failed": 0, "pending": 12}
    assert "they wait in the spool" in state.message
    assert list((own_home / ".prefect-prime" / "spool").glob("*/owner/*.jsonl"))


def test_a_platform_that_goes_away_in_the_middle_gets_everything_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_SEGMENT_AGE", "0.2")
    first = LocalPlatform(tmp_path / "platform", api_key="a-local-key")
    back: list[LocalPlatform] = []
    runs: list[EvalRun] = []

    with first:
        port = int(first.url.rsplit(":", 1)[1])

        @eval_flow(environments=["toy"], credentials=first.credentials)
        def entrypoint() -> None:
            run = current_run()
            runs.append(run)
            first.stop()
            run.log_episodes(episodes_of(CLEAN))
            wait_until(lambda: "does not take uploads" in caplog.text)
            back.append(
                LocalPlatform(tmp_path / "platform", port, api_key="a-local-key").__enter__()
            )

        result = entrypoint()
    try:
        assert canonical(rows(back[0], result.evaluation_id)) == canonical(expected_rows(CLEAN))
    finally:
        back[0].stop()
    assert result.status == "COMPLETED"
    assert "sink takes uploads again" in caplog.text


def test_an_eval_whose_records_are_all_rejected_fails(platform: LocalPlatform) -> None:
    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        current_run().log_episodes([{"id": 1}, {"id": 2, "traces": []}, "no record"])

    with pytest.raises(ValueError, match="all 3 records of this eval were rejected"):
        entrypoint()
