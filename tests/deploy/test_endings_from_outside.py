"""However a deployed eval is ended from outside: nothing is lost, and nothing is left open.

Each test polls the platform, not Prefect. What is asked for is every record whose log call had
returned, once in each sink, and the status of the table in ``flows/endings.py``: by a state hook,
or where Prefect runs none, by ``reconcile``.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any
from uuid import UUID, uuid4

import pytest
from faulty_proxy import FaultyProxy
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling
from support import Evaluations, wait_until

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.flows.reconcile import reconcile
from prefect_prime.local import LocalPlatform

# Beside other work, a server and a worker may take minutes to start.
pytestmark = pytest.mark.timeout(600)

#: ``folder`` says how it went: a line in ``logged`` per record whose log call has returned, the
#: process's id in ``pid`` once it waits for what the test does to it.
FLOW = """
    import os
    import time
    from pathlib import Path

    from prefect_prime.flows import current_run, eval_flow
    from prefect_prime.records import episode


    def log(folder, examples):
        run = current_run()
        for n in run.remaining(examples, key=lambda n: n):
            message = {"role": "user", "content": f"question {n}"}
            record = episode([message], rewards=1.0, example_id=n)
            run.log_episodes([record])
            with (folder / "logged").open("a") as logged:
                logged.write(record["id"] + "\\n")


    def wait(folder):
        (folder / "pid.new").write_text(str(os.getpid()))
        (folder / "pid.new").rename(folder / "pid")
        while not (folder / "go").exists():
            time.sleep(0.05)


    @eval_flow(environments=["toy"], evaluation_name="{name}-nested", credentials="{block}")
    def nested(name: str, block: str, folder: Path):
        log(folder, range(10, 13))
        wait(folder)


    @eval_flow(environments=["toy"], evaluation_name="{name}", credentials="{block}")
    def ended(name: str, folder: Path, how: str = "waits", block: str = "ended"):
        log(folder, range(5))
        if how == "exits":
            os._exit(3)
        elif how == "nests":
            nested(name, block, folder)
        elif how == "waits":
            wait(folder)
        log(folder, range(8))
        (folder / "pid").write_text(str(os.getpid()))
"""


@dataclass
class Ended:
    """One deployed run of the eval above, and what it did."""

    deployed: Any
    evaluations: Evaluations
    name: str
    folder: Path
    id: UUID

    @property
    def pid(self) -> int:
        """The process that runs it, once it waits."""
        return int(
            wait_until(
                lambda: (self.folder / "pid").exists() and (self.folder / "pid").read_text(),
                seconds=120,
            )
        )

    @property
    def logged(self) -> list[str]:
        return (self.folder / "logged").read_text().split()

    def signal(self, sent: signal.Signals) -> None:
        os.kill(self.pid, sent)

    def cancel(self) -> None:
        self.deployed.client.set_flow_run_state(self.id, Cancelling())

    def closed(self, suffix: str = "") -> dict[str, Any]:
        """The newest evaluation of its name, once it is closed."""

        def ended() -> dict[str, Any] | None:
            newest = self.evaluations.named(self.name + suffix)[0]
            return None if newest["status"] == "RUNNING" else self.evaluations(newest["id"])

        return wait_until(ended, seconds=90)

    def reconcile(self) -> None:
        """Reconcile once, as somebody else on the worker's machine."""
        with temporary_settings({PREFECT_API_URL: self.deployed.url}):
            reconcile(credentials="ended", orphaned_after=0.0)


@pytest.fixture(scope="module")
def deployment(
    deployed: Any, platform: LocalPlatform, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """The eval above, deployed from its file; its credentials are a block."""
    folder = tmp_path_factory.mktemp("ended")
    (folder / "ended.py").write_text(dedent(FLOW))
    save(deployed, "ended", platform.credentials)
    deployed.prefect("deploy", "ended.py:ended", "-n", "evals", "-p", "evals", cwd=folder)
    return deployed.client.read_deployment_by_name("ended/evals")


def save(deployed: Any, block: str, credentials: Any) -> None:
    with temporary_settings({PREFECT_API_URL: deployed.url}):
        PrimeCredentials(**dict(credentials)).save(block, overwrite=True)


@pytest.fixture
def start(
    deployed: Any,
    deployment: Any,
    evaluations: Evaluations,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Ended]:
    """``start(how)``: a run of the deployment, or of its copy for another work pool."""
    monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", deployed.env["PREFECT_PRIME_SPOOL_DIR"])

    def started(how: str = "waits", *, of: Any = deployment, **parameters: Any) -> Ended:
        name = f"ended-{uuid4().hex[:8]}"
        given = {"name": name, "folder": str(tmp_path), "how": how, **parameters}
        flow_run = deployed.client.create_flow_run_from_deployment(of.id, parameters=given)
        return Ended(deployed, evaluations, name, tmp_path, flow_run.id)

    return started


@pytest.fixture
def assert_whole(platform: LocalPlatform, evaluations: Evaluations) -> Callable[..., None]:
    """``assert_whole(evaluation, ids)``: it has these records, once in each sink."""

    def check(evaluation: dict[str, Any], ids: list[str]) -> None:
        rows = [row["sample_id"] for row in evaluations.rows(evaluation["id"])]
        assert sorted(rows) == sorted(ids)
        with platform.credentials.get_traces_client() as traces:
            stored = traces.list_episodes(run_id=evaluation["id"], limit=100).items
        assert sorted(each.episode_id for each in stored) == sorted(ids)

    return check


@pytest.mark.parametrize("by", ["ui", "cli"])
def test_a_cancellation_cancels_it(by: str, start: Any, assert_whole: Any) -> None:
    run = start()
    assert run.pid

    if by == "ui":
        run.cancel()
    else:
        run.deployed.prefect("flow-run", "cancel", str(run.id))

    evaluation = run.closed()
    assert evaluation["status"] == "CANCELLED"
    assert_whole(evaluation, run.logged)


@pytest.mark.parametrize(
    ("how", "sent"),
    [("waits", signal.SIGTERM), ("waits", signal.SIGKILL), ("exits", None)],
    ids=["sigterm", "sigkill", "os._exit"],
)
def test_the_death_of_its_process_fails_it(
    how: str, sent: Any, start: Any, assert_whole: Any
) -> None:
    run = start(how)

    if sent is not None:
        run.signal(sent)

    wait_until(lambda: run.evaluations.named(run.name) or None, seconds=120)
    evaluation = run.closed()
    assert evaluation["status"] == "FAILED"
    assert evaluation["error_message"].startswith("crashed: ")
    assert len(run.logged) == 5
    assert_whole(evaluation, run.logged)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("sink", ["samples", "traces"])
def test_a_death_in_the_middle_of_an_upload_sends_it_once(  # noqa: PLR0917 - fixtures
    sink: str, when: Any, start: Any, deployed: Any, platform: LocalPlatform, assert_whole: Any
) -> None:
    """``before`` or ``after`` the platform has stored what it sends."""
    hung: list[str] = []

    def hang(method: str, path: str) -> Any:
        if method == "POST" and path.endswith(sink) and not hung:
            hung.append(path)
            return f"hang {when}"
        return None

    with FaultyProxy(platform, hang) as proxy:
        save(deployed, "ended-by-proxy", proxy.credentials)
        run = start("returns", block="ended-by-proxy")
        pid = run.pid
        wait_until(lambda: hung)
        os.kill(pid, signal.SIGKILL)

        evaluation = run.closed()

    assert evaluation["status"] == "FAILED"
    assert_whole(evaluation, run.logged)


def test_a_cancellation_while_it_drains_cancels_it(
    start: Any, deployed: Any, platform: LocalPlatform, assert_whole: Any
) -> None:
    cancelled: list[bool] = []
    refused: list[str] = []

    def away(method: str, path: str) -> Any:
        if method != "POST" or not path.endswith("samples") or cancelled:
            return None
        refused.append(path)
        return "429 before"

    with FaultyProxy(platform, away) as proxy:
        save(deployed, "ended-by-proxy", proxy.credentials)
        run = start("returns", block="ended-by-proxy")
        assert run.pid
        wait_until(lambda: refused)
        run.cancel()
        cancelled.append(True)

        evaluation = run.closed()

    assert evaluation["status"] == "CANCELLED"
    assert len(run.logged) == 8
    run.reconcile()
    assert_whole(evaluation, run.logged)


def test_reconcile_closes_a_nested_eval_whose_parent_was_killed(
    start: Any, assert_whole: Any
) -> None:
    run = start("nests")

    run.signal(signal.SIGKILL)

    outer = run.closed()
    run.reconcile()
    inner = run.closed("-nested")
    for evaluation in (outer, inner):
        assert evaluation["status"] == "FAILED"
        assert evaluation["error_message"].startswith("crashed: ")
    assert_whole(outer, run.logged[:5])
    assert_whole(inner, run.logged[5:])


def test_a_retry_after_a_crash_takes_every_record_into_the_next_evaluation(
    start: Any, assert_whole: Any
) -> None:
    run = start()
    run.signal(signal.SIGKILL)
    first = run.closed()
    (run.folder / "go").touch()

    run.deployed.prefect("flow-run", "retry", str(run.id))

    wait_until(lambda: len(run.evaluations.named(run.name)) == 2, seconds=120)
    second = run.closed()
    assert second["status"] == "COMPLETED"
    assert f"retry-of:{first['id']}" in second["tags"]
    assert run.evaluations(first["id"])["status"] == "FAILED"
    assert len(run.logged) == 8
    assert_whole(second, run.logged)


@pytest.fixture
def on_mortal(mortal: Any, deployed: Any, deployment: Any) -> tuple[Any, Any]:
    """The deployment's copy for a worker that may be killed, and that worker's process."""
    pool, worker = mortal
    copied = ("flow_id", "entrypoint", "path", "pull_steps", "parameter_openapi_schema")
    copy = deployed.client.create_deployment(
        name=pool, work_pool_name=pool, **{each: getattr(deployment, each) for each in copied}
    )
    return deployed.client.read_deployment(copy), worker


@pytest.mark.parametrize(
    ("sent", "survives"),
    [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, True)],
    ids=["sigkill of both", "sigkill", "sigterm"],
)
def test_reconcile_closes_what_a_dead_worker_leaves(
    sent: signal.Signals, survives: Any, on_mortal: Any, start: Any, assert_whole: Any
) -> None:
    """The eval may go on without its worker; how it then ends is for Prefect to see."""
    deployment, worker = on_mortal
    run = start(of=deployment)
    pid = run.pid

    worker.send_signal(sent)
    if not survives:
        os.kill(pid, signal.SIGKILL)
    worker.wait(90)
    (run.folder / "go").touch()
    wait_until(lambda: not alive(pid))
    run.reconcile()

    evaluation = run.closed()
    state = run.deployed.client.read_flow_run(run.id).state
    assert evaluation["status"] == ("COMPLETED" if state.is_completed() else "FAILED")
    assert survives or evaluation["error_message"].startswith("crashed: its process is gone")
    assert_whole(evaluation, run.logged)


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
