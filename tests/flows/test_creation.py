"""One flow run, one evaluation, whatever becomes of the request that creates it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from faulty_proxy import Fault, FaultyProxy, healthy
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.states import Scheduled
from support import Evaluations

from prefect_prime import creation, platform_client
from prefect_prime.errors import APIError
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.flows.evaluation_facts import EvaluationFacts
from prefect_prime.flows.reconcile import reconcile
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode
from prefect_prime.settings import load_settings
from prefect_prime.spool import Ledger, store

pytestmark = pytest.mark.usefixtures("prefect_server", "quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "SETTLE_TIME", 0.2)
    monkeypatch.setattr(platform_client, "DEFAULT_TIMEOUT", httpx.Timeout(2.0))


@pytest.fixture
def proxy(platform: LocalPlatform) -> Iterator[FaultyProxy]:
    with FaultyProxy(platform) as running:
        yield running


class Creating:
    """Faults of the requests that create, one after another; and of those that look it up."""

    def __init__(self, *faults: Fault, lookup: Fault | None = None) -> None:
        self.faults = list(faults)
        self.lookup = lookup
        self.posts = 0

    def __call__(self, method: str, path: str) -> Fault | None:
        if path.partition("?")[0] != "/api/v1/evaluations/":
            return None
        if method == "GET":
            return self.lookup
        self.posts += 1
        return self.faults.pop(0) if self.faults else None


def run(proxy: FaultyProxy, name: str, **options: Any) -> Any:
    @eval_flow(environments=["toy"], evaluation_name=name, credentials=proxy.credentials, **options)
    def entrypoint() -> None:
        current_run().log_episodes([episode(rewards=1.0)])

    return entrypoint()


@pytest.mark.parametrize(
    ("fault", "posts"),
    [
        ("429 before", 2),
        ("502 before", 2),
        ("502 after", 1),
        ("reset before", 2),
        ("reset after", 1),
        ("hang before", 2),
        ("hang after", 1),
    ],
)
def test_a_lost_answer_gives_one_evaluation(
    proxy: FaultyProxy, evaluations: Evaluations, name: str, fault: Fault, posts: int
) -> None:
    proxy.decide = creating = Creating(fault)

    result = run(proxy, name)

    evaluation = evaluations.only(name)
    assert (result.evaluation_id, result.status) == (evaluation["id"], "COMPLETED")
    assert evaluation["status"] == "COMPLETED"
    assert len(evaluations.rows(evaluation["id"])) == 1
    assert creating.posts == posts


def test_faults_of_both_kinds_in_a_row_give_one_evaluation(
    proxy: FaultyProxy, evaluations: Evaluations, name: str
) -> None:
    proxy.decide = Creating("502 before", "reset after")

    assert run(proxy, name).status == "COMPLETED"
    assert evaluations.only(name)["status"] == "COMPLETED"


def test_what_cannot_be_looked_up_is_offline_and_adopted_later(
    proxy: FaultyProxy, evaluations: Evaluations, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.decide = creating = Creating("502 after", lookup="502 before")

    result = run(proxy, name)

    assert (result.evaluation_id, result.status) == (None, "OFFLINE")
    assert evaluations.only(name)["status"] == "RUNNING"

    creating.lookup = None
    credentials = proxy.credentials
    monkeypatch.setenv("PRIME_API_KEY", credentials.api_key.get_secret_value())
    monkeypatch.setenv("PRIME_API_BASE_URL", credentials.base_url)
    monkeypatch.setenv("PRIME_TRACES_URL", credentials.traces_url or "")
    reconcile()

    evaluation = evaluations.only(name)
    assert evaluation["status"] == "COMPLETED"
    assert len(evaluations.rows(evaluation["id"])) == 1
    assert creating.posts == 1


def test_under_raise_what_cannot_be_looked_up_fails_the_flow_run(
    proxy: FaultyProxy, evaluations: Evaluations, name: str
) -> None:
    proxy.decide = Creating("502 after", lookup="502 before")

    with pytest.raises(APIError, match="GET /evaluations/"):
        run(proxy, name, on_error="raise")

    assert len(evaluations.named(name)) == 1


def test_the_next_process_adopts_what_the_last_one_had_created_when_it_died(
    proxy: FaultyProxy, evaluations: Evaluations, name: str, tmp_path: Path
) -> None:
    tag = f"prefect-flow-run:{uuid4()}:1"
    proxy.decide = creating = Creating("reset after", lookup="502 before")

    def create() -> dict[str, Any]:
        ledger = Ledger(tmp_path / "ledger.sqlite3")
        with proxy.credentials.get_client(attempts=1) as client:
            environment = client.resolve_environment("toy")["id"]
            fields = {"name": name, "environments": [{"id": environment}], "tags": [tag]}
            try:
                return creation.create_once(client, tag, EvaluationFacts(ledger), fields)
            finally:
                ledger.close()

    with pytest.raises(APIError):
        create()
    creating.lookup = None
    adopted = create()

    assert adopted["id"] == evaluations.only(name)["id"]
    assert creating.posts == 1


def test_a_clock_that_was_set_back_does_not_hold_anybody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(creation.time, "sleep", slept.append)

    creation.settle(creation.time.time() + 86_400)

    assert slept == [creation.SETTLE_TIME]


def test_an_attempt_that_cannot_tell_whether_its_evaluation_is_closed_sends_nothing_there(
    proxy: FaultyProxy, evaluations: Evaluations, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @eval_flow(environments=["toy"], evaluation_name=name, credentials=proxy.credentials)
    def entrypoint() -> None:
        attempt = current_run().attempt
        current_run().log_episodes([episode(rewards=1.0, example_id=attempt)])
        if attempt == 1:
            raise ValueError("the first time")

    with pytest.raises(ValueError, match="the first time"):
        entrypoint()
    closed = evaluations.only(name)
    assert closed["status"] == "FAILED"
    flow_run_id = UUID(closed["metadata"]["prefect"]["flow_run_id"])
    ledger = Ledger(store.owner_folder(load_settings().spool_dir, flow_run_id) / "ledger.sqlite3")
    ledger.set_fact("closed", None)  # it died before it knew
    ledger.close()

    proxy.decide = lambda method, _path: "502 before" if method == "GET" else None
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run_id, Scheduled(), force=True)
        run_flow(entrypoint, client.read_flow_run(flow_run_id))
    assert len(evaluations.rows(closed["id"])) == 1

    proxy.decide = healthy
    credentials = proxy.credentials
    monkeypatch.setenv("PRIME_API_KEY", credentials.api_key.get_secret_value())
    monkeypatch.setenv("PRIME_API_BASE_URL", credentials.base_url)
    monkeypatch.setenv("PRIME_TRACES_URL", credentials.traces_url or "")
    reconcile()

    newest, oldest = evaluations.named(name)
    assert (newest["status"], oldest["status"]) == ("COMPLETED", "FAILED")
    assert f"retry-of:{closed['id']}" in newest["tags"]
    assert len(evaluations.rows(newest["id"])) == 2
