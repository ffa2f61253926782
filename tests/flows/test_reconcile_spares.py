"""``reconcile`` touches nothing that is alive, that will go on, or that is somebody else's."""

from typing import Any
from uuid import uuid4

import pytest
from left_behind import Evals, assert_whole, reconciled
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.states import AwaitingRetry, Crashed, Paused, Scheduled, Suspended
from support import Evaluations
from tracked import set_state

from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server", "account")


def test_a_living_run_is_left_alone_whatever_prefect_shows(
    evaluations: Evaluations, evals: Evals, name: str
) -> None:
    with evals.running(name) as flow_run_id:
        assert reconciled(name) == []
        set_state(flow_run_id, Crashed(message="missing heartbeats"))
        assert reconciled(name) == []
        assert evaluations.only(name)["status"] == "RUNNING"


@pytest.mark.parametrize(
    "state",
    [Scheduled(), AwaitingRetry(), Paused(timeout_seconds=600), Suspended(timeout_seconds=600)],
    ids=lambda state: state.name,
)
def test_a_run_that_will_go_on_is_left_alone(
    state: State[Any], evaluations: Evaluations, evals: Evals, name: str
) -> None:
    set_state(evals.killed(name), state)

    assert reconciled(name) == []
    assert evaluations.only(name)["status"] == "RUNNING"


def test_a_run_that_was_alive_a_moment_ago_is_left_alone(
    evaluations: Evaluations, evals: Evals, name: str
) -> None:
    evals.killed(name)

    assert reconciled(name, orphaned_after=300.0) == []
    assert evaluations.only(name)["status"] == "RUNNING"


def test_an_evaluation_of_another_prefect_server_is_left_alone(
    evaluations: Evaluations, evals: Evals, name: str
) -> None:
    """Its server does not know the flow run, neither from a spool here nor from the metadata."""
    flow_run_id = evals.killed(name)
    with get_client(sync_client=True) as client:
        client.delete_flow_run(flow_run_id)
    prefect = {"server_id": "another", "flow_run_id": str(uuid4()), "store_id": "another"}
    foreign = create(evaluations, f"{name}-foreign", {"prefect": prefect})

    assert reconciled(name, undelivered_after=0.0) == []
    assert evaluations.only(name)["status"] == "RUNNING"
    assert evaluations(foreign)["status"] == "RUNNING"


def create(evaluations: Evaluations, name: str, metadata: dict[str, Any]) -> str:
    """Open an evaluation as somebody else would."""
    client = evaluations.client
    environment = client.resolve_environment("toy")["id"]
    created = client.create_evaluation(
        name=name, environments=[{"id": environment}], metadata=metadata
    )
    return str(created["evaluation_id"])


@pytest.mark.parametrize("way", ["attached", "hosted"])
def test_records_of_a_dead_guest_are_sent_and_the_evaluation_is_left_to_its_owner(  # noqa: PLR0917 - fixtures
    way: str,
    platform: LocalPlatform,
    evaluations: Evaluations,
    evals: Evals,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owners = create(evaluations, name, {"launched": "by somebody"})
    if way == "hosted":
        monkeypatch.setenv("EVALUATION_ID", owners)
        flow_run_id = evals.killed(name)
        monkeypatch.delenv("EVALUATION_ID")
    else:
        flow_run_id = evals.killed(name, evaluation_id=owners)
    set_state(flow_run_id, Crashed())

    reconciled(name)

    evaluation = evaluations.only(name)
    assert (evaluation["status"], evaluation["metadata"]) == (
        "RUNNING",
        {"launched": "by somebody"},
    )
    assert_whole(platform, evaluations, name)
    assert reconciled(name) == []
