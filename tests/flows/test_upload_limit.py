"""Uploads of all runs share Prefect's limit ``prime-uploads``, where there is one."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
from support import Evaluations
from tracked import rollout

from prefect_prime.flows import EvalRun, current_run, upload_limit

pytestmark = pytest.mark.usefixtures("prefect_server", "account")


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_limit, "_known", {})
    monkeypatch.setattr(upload_limit, "_PATIENCE", 0.2)


@contextmanager
def limit(**options: Any) -> Iterator[None]:
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(
            GlobalConcurrencyLimitCreate(name=upload_limit.NAME, **options)
        )
        try:
            yield
        finally:
            client.delete_global_concurrency_limit_by_name(upload_limit.NAME)


def log_one(_: object = None) -> None:
    current_run().log_episodes([rollout(1)])


def test_an_upload_waits_for_a_slot_that_another_run_holds(
    evaluate: Callable[..., Any], evaluations: Evaluations
) -> None:
    def body(run: EvalRun) -> None:
        with concurrency(upload_limit.NAME):
            log_one()
            assert not run.flush(0.5)
        assert run.flush(60)

    with limit(limit=1):
        result = evaluate(body)

    assert len(evaluations.rows(result.evaluation_id)) == 1


def test_the_slots_are_given_back(evaluate: Callable[..., Any]) -> None:
    with limit(limit=2), get_client(sync_client=True) as client:
        evaluate(log_one)
        found = client.read_global_concurrency_limit_by_name(upload_limit.NAME)

    assert found.active_slots == 0


def test_a_limit_that_decays_is_a_rate(
    evaluate: Callable[..., Any],
    evaluations: Evaluations,
) -> None:
    with limit(limit=100, slot_decay_per_second=0.001), get_client(sync_client=True) as client:
        result = evaluate(log_one)
        found = client.read_global_concurrency_limit_by_name(upload_limit.NAME)

    assert len(evaluations.rows(result.evaluation_id)) == 1
    assert found.active_slots == 2  # traces and samples: nobody has given them back


def test_a_run_that_stops_waits_no_more() -> None:
    stopping = threading.Event()
    with limit(limit=1), concurrency(upload_limit.NAME):
        stop = threading.Timer(0.1, stopping.set)
        stop.start()
        with upload_limit.upload_slot(stopping.is_set) as granted:
            assert not granted


def test_without_a_limit_it_is_asked_for_once_and_nothing_is_said(
    evaluate: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []
    ask = SyncPrefectClient.read_global_concurrency_limit_by_name

    def counting(client: SyncPrefectClient, name: str) -> Any:
        asked.append(name)
        return ask(client, name)

    monkeypatch.setattr(SyncPrefectClient, "read_global_concurrency_limit_by_name", counting)

    def body(run: EvalRun) -> None:
        for _ in range(3):
            log_one()
            assert run.flush(60)

    evaluate(body)

    assert asked == [upload_limit.NAME]
    assert "prime-uploads" not in caplog.text
    assert "oncurrency limit" not in caplog.text
