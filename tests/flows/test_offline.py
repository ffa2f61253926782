"""``PRIME_RUNS_MODE=offline``: no platform, no key, and nothing is missing."""

import json
import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import guest_workers
import pytest
from support import DATA, episodes_of, expected_summary

from prefect_prime.flows import EvalRun, current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")
CLEAN = DATA / "clean"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_RUNS_MODE", "offline")


def spooled(own_home: Path) -> list[dict[str, Any]]:
    segments = sorted((own_home / ".prefect-prime" / "spool").glob("*/owner/*.jsonl"))
    return [json.loads(line) for each in segments for line in each.read_bytes().splitlines()]


def test_everything_works_without_a_platform_and_a_key(own_home: Path) -> None:
    runs: list[EvalRun] = []

    @eval_flow(environments=["toy"], config={"temperature": 0}, on_error="raise")
    def entrypoint() -> None:
        run = current_run()
        runs.append(run)
        run.log_episodes(episodes_of(CLEAN))
        run.update_summary({"extra": 7})
        assert (run.id, run.url, run.flush()) == (None, None, False)
        assert run.pending_records == {"traces": 12, "samples": 12}

    state = entrypoint(return_state=True)

    result = state.result()
    assert state.is_completed()
    assert (result.status, result.evaluation_id, result.url) == ("OFFLINE", None, None)
    assert {key: result.summary[key] for key in expected_summary(CLEAN)} == expected_summary(CLEAN)
    assert result.summary["extra"] == 7
    assert result.losses["traces"] == {"failed": 0, "pending": 12}
    assert "they wait in the spool" in state.message
    assert len(spooled(own_home)) == 12
    assert (runs[0].id, runs[0].episodes_logged) == (None, 12)


def test_a_key_is_not_used(platform: LocalPlatform) -> None:
    before = len(platform.requests)

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        current_run().log_episodes([episode(rewards=1.0)])

    assert entrypoint().status == "OFFLINE"
    assert len(platform.requests) == before


def test_a_retry_goes_on(own_home: Path, caplog: pytest.LogCaptureFixture) -> None:
    @eval_flow(environments=["toy"], retries=1)
    def entrypoint() -> None:
        run = current_run()
        for task in run.remaining(range(5), key=lambda task: task):
            if run.attempt == 1 and task == 3:
                raise ValueError("in the middle")
            run.log_episodes([episode(rewards=1.0, example_id=task)])
        assert run.logged == Counter(range(5))

    entrypoint()

    assert "Attempt 2: 3 kept, 2 to run." in caplog.text
    assert len(spooled(own_home)) == 5


def test_an_eval_that_fails_keeps_its_records(own_home: Path) -> None:
    @eval_flow(environments=["toy"])
    def entrypoint() -> None:
        current_run().log_episodes([episode(rewards=1.0)])
        raise ValueError("fails")

    assert entrypoint(return_state=True).is_failed()
    assert len(spooled(own_home)) == 1


def test_a_process_pool_logs_too(own_home: Path) -> None:
    @eval_flow(environments=["toy"])
    def entrypoint() -> None:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            list(pool.map(guest_workers.log, [current_run()] * 3, range(3), [2] * 3))

    result = entrypoint()

    assert (result.status, result.episodes, len(spooled(own_home))) == ("OFFLINE", 6, 6)


def test_an_attached_eval_keeps_its_records_too(own_home: Path) -> None:
    @eval_flow(environments=["toy"], evaluation_id="somebody-elses")
    def entrypoint() -> None:
        current_run().log_episodes([episode(rewards=1.0)])

    assert entrypoint().status == "OFFLINE"
    assert len(spooled(own_home)) == 1
