"""``reconcile`` finishes what nobody else will, and touches nothing else."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from faulty_proxy import Fault, FaultyProxy, healthy
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import FlowRun, State
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL
from prefect.states import (
    AwaitingRetry,
    Cancelled,
    Cancelling,
    Completed,
    Crashed,
    Paused,
    Scheduled,
    Suspended,
)
from pydantic import SecretStr
from support import Evaluations, wait_until

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.flows.reconcile import reconcile
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode
from prefect_prime.settings import load_settings
from prefect_prime.spool import store

pytestmark = pytest.mark.usefixtures("prefect_server", "account")

#: Importing Prefect takes seconds, so it is done once: each line on stdin has a fork run an eval
#: that logs three episodes, says so, and goes on until it is killed.
EVALS = """
import ast, json, os, signal, sys, time
from pathlib import Path
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.records import episode

def killed(name, marker, options):
    @eval_flow(environments=["toy"], evaluation_name=name, **options)
    def killed():
        for n in range(3):
            message = {"role": "user", "content": f"question {n}"}
            current_run().log_episodes(
                [episode([message], rewards=1.0, example_id=n, id=f"{name}-{n}")]
            )
        from prefect.runtime import flow_run
        Path(marker).write_text(flow_run.id)
        time.sleep(600)
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        killed()

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order.pop("log"), os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1), os.dup2(log, 2)
        for key, value in order.pop("env").items():
            os.environ[key] = value
        killed(**order)
        break
    print(pid, flush=True)
"""


@pytest.fixture
def name() -> str:
    return f"reconciled-{uuid4().hex[:8]}"


@pytest.fixture
def account(platform: LocalPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment holds the credentials of the embedded platform."""
    enter(platform, monkeypatch)


def enter(platform: LocalPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = platform.credentials
    monkeypatch.setenv("PRIME_API_KEY", credentials.api_key.get_secret_value())
    monkeypatch.setenv("PRIME_API_BASE_URL", platform.url)
    monkeypatch.setenv("PRIME_TRACES_URL", platform.url)
    monkeypatch.setenv("PRIME_FRONTEND_URL", platform.url)


class Evals:
    """Evals in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", EVALS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PREFECT_API_URL": PREFECT_API_URL.value() or ""},
        )

    @contextmanager
    def running(self, name: str, **options: Any) -> Iterator[UUID]:
        """The flow run of an eval that has logged three episodes; it is killed at the end."""
        marker, log = (self._folder / f"{name}.{what}" for what in ("marker", "log"))
        own = ("HOME", "PRIME_", "EVALUATION_ID")
        env = {key: value for key, value in os.environ.items() if key.startswith(own)}
        order = {"name": name, "marker": marker, "log": log, "env": env, "options": options}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order, default=str), file=self._process.stdin, flush=True)
        pid = int(self._process.stdout.readline())
        try:
            wait_until(lambda: marker.exists() or not alive(pid), seconds=120)
            assert alive(pid), log.read_text()
            yield UUID(wait_until(marker.read_text))
        finally:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not alive(pid))

    def killed(self, name: str, **options: Any) -> UUID:
        """The flow run of an eval that was killed after it had logged three episodes."""
        with self.running(name, **options) as flow_run_id:
            return flow_run_id

    def close(self) -> None:
        self._process.communicate(timeout=30)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def evals(
    prefect_server: None,  # noqa: ARG001 - the evals need it; a fixture takes no usefixtures
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Evals]:
    started = Evals(tmp_path_factory.mktemp("evals"))
    yield started
    started.close()


def set_state(flow_run_id: UUID, state: State[Any]) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run_id, state, force=True)


def reconciled(name: str, **options: Any) -> list[dict[str, Any]]:
    """Reconcile with no patience; what it found of the evaluations that bear a name."""
    found: list[dict[str, Any]] = reconcile(**{"orphaned_after": 0.0, **options})
    return [each for each in found if each["name"].startswith(name)]


def the_only(evaluations: Evaluations, name: str) -> dict[str, Any]:
    (found,) = evaluations.named(name)
    return evaluations(found["id"])


def assert_whole(
    platform: LocalPlatform, evaluations: Evaluations, name: str, count: int = 3
) -> None:
    """The one evaluation of that name has every record once, in both sinks."""
    evaluation = the_only(evaluations, name)
    ids = [row["sample_id"] for row in evaluations.rows(evaluation["id"])]
    assert len(set(ids)) == len(ids) == count
    with platform.credentials.get_traces_client() as traces:
        stored = traces.list(run_id=evaluation["id"], limit=100).items
    assert len(stored) == count


def granted(platform: LocalPlatform, evaluation_id: str, method: str, end: str = "") -> int:
    """How many requests for an evaluation were granted."""
    return sum(
        (request.method, request.status // 100) == (method, 2)
        and request.path.endswith(f"{evaluation_id}{end}")
        for request in platform.requests
    )


# -- the dead -------------------------------------------------------------------------


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

    evaluation = the_only(evaluations, name)
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

    evaluation = the_only(evaluations, name)
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
        evaluation = the_only(evaluations, each)
        assert evaluation["status"] == "COMPLETED"
        assert granted(platform, evaluation["id"], "POST", "/finalize") == 1
        assert_whole(platform, evaluations, each)


# -- what is left alone ------------------------------------------------------------------


def test_a_living_run_is_left_alone_whatever_prefect_shows(
    evaluations: Evaluations, evals: Evals, name: str
) -> None:
    with evals.running(name) as flow_run_id:
        assert reconciled(name) == []
        set_state(flow_run_id, Crashed(message="missing heartbeats"))
        assert reconciled(name) == []
        assert the_only(evaluations, name)["status"] == "RUNNING"


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
    assert the_only(evaluations, name)["status"] == "RUNNING"


def test_a_run_that_was_alive_a_moment_ago_is_left_alone(
    evaluations: Evaluations, evals: Evals, name: str
) -> None:
    evals.killed(name)

    assert reconciled(name, orphaned_after=300.0) == []
    assert the_only(evaluations, name)["status"] == "RUNNING"


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
    assert the_only(evaluations, name)["status"] == "RUNNING"
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

    evaluation = the_only(evaluations, name)
    assert (evaluation["status"], evaluation["metadata"]) == (
        "RUNNING",
        {"launched": "by somebody"},
    )
    assert_whole(platform, evaluations, name)
    assert reconciled(name) == []


# -- credentials -------------------------------------------------------------------------


def test_an_evaluation_without_credentials_is_named_with_its_platform(
    platform: LocalPlatform, evals: Evals, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalPlatform() as other:
        enter(other, monkeypatch)
        set_state(evals.killed(name), Crashed())
        enter(platform, monkeypatch)

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
    assert the_only(evaluations, name)["status"] == "FAILED"


# -- offline, and what did not arrive in time -----------------------------------------------


def no_samples(_method: str, path: str) -> Fault | None:
    return "429" if path.endswith("samples") else None


def test_an_offline_run_is_sent_later_as_the_evaluation_it_would_have_been(
    platform: LocalPlatform, evaluations: Evaluations, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @eval_flow(
        environments=["toy"],
        model="{model}",
        evaluation_name=name + "-{model}",
        tags=["nightly"],
        config={"n": 3},
    )
    def entrypoint(model: str = "solver") -> None:
        log_three(name)
        current_run().update_summary({"avg_metrics": {"pass@1": 0.5}})
        if model == "broken":
            raise ValueError("the model is gone")

    for variable in ("PRIME_API_KEY", "PRIME_API_BASE_URL", "PRIME_TRACES_URL"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PRIME_RUNS_MODE", "offline")
    states = [entrypoint(return_state=True), entrypoint("broken", return_state=True)]
    monkeypatch.delenv("PRIME_RUNS_MODE")
    assert evaluations.named(f"{name}-solver") == []
    enter(platform, monkeypatch)

    reconciled(name)

    for model, state, status in zip(
        ("solver", "broken"), states, ("COMPLETED", "FAILED"), strict=True
    ):
        evaluation = the_only(evaluations, f"{name}-{model}")
        assert evaluation["status"] == status
        assert evaluation["model_name"] == model
        assert "nightly" in evaluation["tags"]
        assert evaluation["metadata"]["n"] == 3
        assert evaluation["metrics"]["avg_reward"] == 1.0
        assert evaluation["metrics"]["avg_metrics"]["pass@1"] == 0.5
        flow_run = flow_run_of(state.state_details.flow_run_id)
        origin = evaluation["metadata"]["prefect"]
        assert datetime.fromisoformat(origin["started_at"]) == flow_run.start_time
        assert datetime.fromisoformat(origin["ended_at"]) == flow_run.end_time
        assert origin["flow_run_id"] == str(flow_run.id)
        assert_whole(platform, evaluations, f"{name}-{model}")
    assert evaluation["error_message"].endswith("the model is gone")


def log_three(name: str) -> None:
    for n in range(3):
        message = {"role": "user", "content": f"question {n}"}
        made = episode([message], rewards=1.0, example_id=n, id=f"{name}-{n}-{uuid4().hex}")
        current_run().log_episodes([made])


def flow_run_of(flow_run_id: Any) -> FlowRun:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(flow_run_id)


def test_a_completed_run_that_did_not_drain_in_time_is_finished(
    platform: LocalPlatform, evaluations: Evaluations, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @eval_flow(environments=["toy"], evaluation_name=name)
    def entrypoint() -> None:
        log_three(name)

    with FaultyProxy(platform, no_samples) as proxy:
        monkeypatch.setenv("PRIME_API_BASE_URL", proxy.url)
        monkeypatch.setenv("PREFECT_PRIME_DRAIN_TIMEOUT", "0")
        state = entrypoint(return_state=True)
        assert "3 still to be sent to samples" in state.message
        assert the_only(evaluations, name)["status"] == "RUNNING"
        proxy.decide = healthy

        assert reconciled(name)[0]["status"] == "COMPLETED"

    assert_whole(platform, evaluations, name)


def test_a_run_whose_last_upload_hangs_is_alive_until_it_is_over(
    platform: LocalPlatform, evaluations: Evaluations, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @eval_flow(environments=["toy"], evaluation_name=name)
    def entrypoint() -> None:
        log_three(name)

    def hang(_method: str, path: str) -> Fault | None:
        return "hang before" if path.endswith("/traces") else None

    with FaultyProxy(platform, hang) as proxy:
        monkeypatch.setenv("PRIME_API_BASE_URL", proxy.url)
        monkeypatch.setenv("PRIME_TRACES_URL", proxy.url)
        monkeypatch.setenv("PREFECT_PRIME_DRAIN_TIMEOUT", "0")
        entrypoint()
        assert reconciled(name) == []
        proxy.decide = healthy
        proxy.let_go.set()

        found = wait_until(lambda: reconciled(name))

    assert found[0]["status"] == "COMPLETED"
    assert_whole(platform, evaluations, name)


def no_closing(method: str, _path: str) -> Fault | None:
    return "502 before" if method == "PUT" else None


@pytest.mark.parametrize("then", ["reconciled", "run again"])
def test_an_ending_that_the_platform_did_not_take_stands_until_another_attempt(
    then: str,
    platform: LocalPlatform,
    evaluations: Evaluations,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = [True]

    @eval_flow(environments=["toy"], evaluation_name=name)
    def entrypoint() -> None:
        if broken[0]:
            log_three(name)
            raise ValueError("the model is gone")

    with FaultyProxy(platform, no_closing) as proxy:
        monkeypatch.setenv("PRIME_API_BASE_URL", proxy.url)
        state = entrypoint(return_state=True)
        assert the_only(evaluations, name)["status"] == "RUNNING"
        proxy.decide, broken[0] = healthy, False
        flow_run = flow_run_of(state.state_details.flow_run_id)

        if then == "reconciled":
            assert reconciled(name)[0]["status"] == "FAILED"
            assert the_only(evaluations, name)["error_message"].endswith("the model is gone")
        else:
            set_state(flow_run.id, AwaitingRetry())
            run_flow(entrypoint, flow_run=flow_run_of(flow_run.id), parameters={})
            assert the_only(evaluations, name)["status"] == "COMPLETED"

    assert_whole(platform, evaluations, name)


# -- spools that are not here ---------------------------------------------------------------


def test_records_in_another_store_are_waited_for_until_the_deadline(
    evaluations: Evaluations, evals: Evals, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_state(evals.killed(name), Crashed(message="its machine is gone"))
    monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", str(Path.home() / "another-store"))

    assert reconciled(name, undelivered_after=3600.0)[0]["status"] is None
    assert the_only(evaluations, name)["status"] == "RUNNING"

    assert reconciled(name, undelivered_after=0.0)[0]["status"] == "FAILED"
    evaluation = the_only(evaluations, name)
    assert evaluation["status"] == "FAILED"
    assert evaluation["error_message"] == "crashed: its machine is gone"
    assert evaluation["metadata"]["prefect"]["undelivered"] is True


def test_an_evaluation_whose_spool_is_gone_is_closed_at_once(
    evaluations: Evaluations, evals: Evals, name: str
) -> None:
    flow_run_id = evals.killed(name)
    set_state(flow_run_id, Crashed())
    store.remove(store.owner_folder(load_settings().spool_dir, flow_run_id))

    assert reconciled(name)[0]["status"] == "FAILED"
    assert the_only(evaluations, name)["status"] == "FAILED"


# -- retention -------------------------------------------------------------------------------


def test_the_spool_of_a_closed_evaluation_is_kept_for_a_week(evals: Evals, name: str) -> None:
    flow_run_id = evals.killed(name)
    set_state(flow_run_id, Crashed())
    reconciled(name)
    folder = store.owner_folder(load_settings().spool_dir, flow_run_id)

    age(folder, days=6.9)
    reconciled(name)
    assert folder.exists()
    age(folder, days=7.1)
    reconciled(name)
    assert not folder.parent.exists()


def test_what_is_still_to_be_sent_is_never_removed(
    platform: LocalPlatform,
    evaluations: Evaluations,
    evals: Evals,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FaultyProxy(platform, no_samples) as proxy:
        monkeypatch.setenv("PRIME_API_BASE_URL", proxy.url)
        flow_run_id = evals.killed(name)
        set_state(flow_run_id, Crashed())
        (finding,) = reconciled(name, drain_timeout=0.0)
        assert finding["status"] == "FAILED"
        assert "'pending': 3" in finding["note"]

        folder = store.owner_folder(load_settings().spool_dir, flow_run_id)
        age(folder, days=100)
        with monkeypatch.context() as without:
            without.delenv("PRIME_API_KEY")
            reconciled(name)
        assert folder.exists()

        proxy.decide = healthy
        reconciled(name)
    assert_whole(platform, evaluations, name)


def age(folder: Path, *, days: float) -> None:
    """Make everything in a spool have happened that long ago."""
    then = time.time() - days * 86_400
    with closing(sqlite3.connect(folder / "ledger.sqlite3")) as ledger, ledger:
        ledger.execute("UPDATE deliveries SET changed_at = ?", (then,))
    for path in folder.iterdir():
        os.utime(path, (then, then))


# -- the sweep when an eval starts --------------------------------------------------------------


def test_an_eval_that_starts_finishes_what_is_over_on_its_machine(
    platform: LocalPlatform, evaluations: Evaluations, evals: Evals, name: str, capfd: Any
) -> None:
    set_state(evals.killed(name), Crashed())
    evals.killed(f"{name}-still-running")

    @eval_flow(environments=["toy"], evaluation_name=f"{name}-next")
    def entrypoint() -> None:
        wait_until(lambda: the_only(evaluations, name)["status"] == "FAILED")

    entrypoint()

    assert_whole(platform, evaluations, name)
    assert the_only(evaluations, f"{name}-still-running")["status"] == "RUNNING"
    assert name not in capfd.readouterr().err.replace(f"{name}-next", "")
