"""``reconcile`` finishes what nobody else will, says so, and does it once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from left_behind import Evals, assert_whole, reconciled
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import FlowRun, State
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelled, Cancelling, Completed, Crashed
from pydantic import SecretStr
from support import Evaluations, account, wait_until
from tracked import set_state

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.flows import sweep
from prefect_prime.flows.reconcile import reconcile
from prefect_prime.local import LocalPlatform
from prefect_prime.settings import load_settings
from prefect_prime.spool import store

pytestmark = pytest.mark.usefixtures("prefect_server", "account")


def granted(platform: LocalPlatform, evaluation_id: str, method: str, end: str = "") -> int:
    """How many requests for an evaluation were granted."""
    return sum(
        (request.method, request.status // 100) == (method, 2)
        and request.path.endswith(f"{evaluation_id}{end}")
        for request in platform.requests
    )


@pytest.mark.parametrize(
    ("state", "status", "message"),
    [
        (Crashed(message="zombie"), "FAILED", "crashed: zombie"),
        (Cancelled(message="not today"), "CANCELLED", "not today"),
        (Cancelling(message="on its way"), "CANCELLED", "on its way"),
        (None, "FAILED", "crashed: its process is gone, and Prefect shows Running"),
        (Completed(), "COMPLETED", None),
    ],
    ids=["crashed", "cancelled", "cancelling", "running", "completed without its hook"],
)
def test_a_killed_eval_is_sent_and_closed_as_prefect_sees_it(  # noqa: PLR0917 - fixtures
    state: State[Any] | None,
    status: str,
    message: str | None,
    platform: LocalPlatform,
    evaluations: Evaluations,
    evals: Evals,
    name: str,
) -> None:
    flow_run_id = evals.killed(name)
    if state is not None:
        set_state(flow_run_id, state)

    (finding,) = reconciled(name)

    evaluation = evaluations.only(name)
    assert (evaluation["status"], evaluation.get("error_message")) == (status, message)
    assert finding["status"] == status
    assert finding["evaluation_id"] == evaluation["id"]
    assert evaluation["metrics"]["avg_reward"] == 1.0
    assert_whole(platform, evaluations, name)


def test_what_it_did_is_a_table_and_an_event_per_evaluation(
    evaluations: Evaluations, evals: Evals, name: str
) -> None:
    set_state(evals.killed(name), Crashed())

    state: State[Any] = reconcile(return_state=True)

    evaluation = evaluations.only(name)
    with get_client(sync_client=True) as client:
        (artifact,) = client.read_artifacts(
            artifact_filter=ArtifactFilter(
                flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id])
            )
        )
        rows = {row["name"]: row for row in json.loads(str(artifact.data))}
        assert rows[name]["status"] == "FAILED"

        def events() -> list[str]:
            resource = {"id": [f"prime.evaluation.{evaluation['id']}"]}
            answer = client.request(
                "POST", "/events/filter", json={"filter": {"resource": resource}}
            )
            return [each["event"] for each in answer.json()["events"]]

        wait_until(lambda: "prime.evaluation.crashed" in events())


def test_the_same_row_is_not_reported_twice(evals: Evals, name: str) -> None:
    set_state(evals.killed(name), Crashed())

    assert [each["name"] for each in reconciled(name)] == [name]
    assert reconciled(name) == []


def test_two_at_once_close_each_once(
    platform: LocalPlatform, evaluations: Evaluations, evals: Evals, name: str
) -> None:
    names = [f"{name}-{n}" for n in range(3)]
    for each in names:
        set_state(evals.killed(each), Completed())
    env = {**os.environ, "PREFECT_API_URL": PREFECT_API_URL.value() or ""}
    command = [sys.executable, "-m", "prefect_prime.flows.reconcile"]

    both = [subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) for _ in range(2)]

    assert [process.wait(120) for process in both] == [0, 0]
    for each in names:
        evaluation = evaluations.only(each)
        assert evaluation["status"] == "COMPLETED"
        assert granted(platform, evaluation["id"], "POST", "/finalize") == 1
        assert_whole(platform, evaluations, each)


def test_what_another_one_finishes_while_it_is_looked_at_is_left_alone(
    platform: LocalPlatform,
    evaluations: Evaluations,
    evals: Evals,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_state(evals.killed(name), Completed())
    read = sweep.read_flow_run

    def after_the_other_one(run_id: UUID) -> FlowRun | None:
        monkeypatch.setattr(sweep, "read_flow_run", read)
        assert [each["status"] for each in reconciled(name)] == ["COMPLETED"]
        return read(run_id)

    monkeypatch.setattr(sweep, "read_flow_run", after_the_other_one)

    assert reconciled(name) == []
    evaluation = evaluations.only(name)
    assert granted(platform, evaluation["id"], "POST", "/finalize") == 1
    assert_whole(platform, evaluations, name)
    run_id = evaluation["metadata"]["prefect"]["flow_run_id"]
    assert not store.owner_folder(load_settings().spool_dir, run_id).exists()


def test_a_spool_that_another_one_removes_while_it_is_looked_at_is_no_finding(
    spool_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.owner_folder(spool_dir, uuid4())
    store.private(folder)

    def gone(seen: Path) -> None:
        store.remove(seen)

    monkeypatch.setattr(sweep, "peek", gone)

    assert reconcile() == []


# -- credentials -------------------------------------------------------------------------


def use(platform: LocalPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in account(platform.credentials).items():
        monkeypatch.setenv(variable, value)


def test_an_evaluation_without_credentials_is_named_with_its_platform(
    platform: LocalPlatform, evals: Evals, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalPlatform() as other:
        use(other, monkeypatch)
        set_state(evals.killed(name), Crashed())
        use(platform, monkeypatch)

        assert reconciled(name)[0]["note"] == f"no credentials for {other.url}"

        for block, each in (("one", platform), ("two", other)):
            PrimeCredentials(**dict(each.credentials)).save(f"{name}-{block}")
        (finding,) = reconciled(name, credentials=[f"{name}-one", f"{name}-two"])
        assert finding["status"] == "FAILED"
        with other.credentials.get_client() as client:
            assert_whole(other, Evaluations(client), name)


def test_a_platform_that_cannot_be_asked_does_not_keep_the_others_waiting(
    platform: LocalPlatform, evaluations: Evaluations, evals: Evals, name: str
) -> None:
    set_state(evals.killed(name), Crashed())
    with LocalPlatform() as other:
        locked_out = other.credentials.model_copy(update={"api_key": SecretStr("another")})
        for block, each in (("locked-out", locked_out), ("well", platform.credentials)):
            PrimeCredentials(**dict(each)).save(f"{name}-{block}")

        found = reconcile(credentials=[f"{name}-locked-out", f"{name}-well"], orphaned_after=0.0)

        (trouble,) = (each for each in found if each["name"] == other.url)
    assert trouble["status"] is None
    assert trouble["note"].startswith("UnauthorizedError")
    assert evaluations.only(name)["status"] == "FAILED"
