"""A real Prefect server and a real process worker, each a process of its own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import UUID, uuid4

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, temporary_settings
from support import Evaluations, wait_until

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.local import LocalPlatform

#: The work pool of the repository's ``prefect.yaml``.
POOL = "evals"


@dataclass(frozen=True)
class Deployed:
    """The server, its client, and the environment in which commands reach it."""

    url: str
    env: dict[str, str]
    client: SyncPrefectClient
    folder: Path

    def prefect(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run one command of Prefect's; its output, whether it succeeded or not."""
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            cwd=cwd or self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def run(self, deployment: str, **parameters: Any) -> FlowRun:
        """Run a deployment to its end."""
        found = self.client.read_deployment_by_name(deployment)
        created = self.client.create_flow_run_from_deployment(found.id, parameters=parameters)
        return self.completed(created.id)

    def completed(self, flow_run_id: UUID) -> FlowRun:
        """The flow run, once it has ended; fails with its log if it ended otherwise."""

        def ended() -> FlowRun | None:
            found = self.client.read_flow_run(flow_run_id)
            return found if found.state is not None and found.state.is_final() else None

        flow_run = wait_until(ended, seconds=120)
        assert flow_run.state is not None
        assert flow_run.state.is_completed(), self.logs_of(flow_run_id)
        return flow_run

    def logs_of(self, flow_run_id: UUID) -> str:
        """What a flow run logged."""
        wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id]))
        return "\n".join(log.message for log in self.client.read_logs(wanted))

    def pool_is_there(self, pool: str) -> bool:
        return httpx.get(f"{self.url}/work_pools/{pool}", timeout=5).is_success


def own_processes(home: Path) -> list[int]:
    """The processes that belong to the server with this home, wherever they descend from.

    A worker starts flow runs in sessions of their own, and they outlive it.
    """
    marker = f"PREFECT_HOME={home}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if marker in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


@contextmanager
def process(
    arguments: list[str], env: dict[str, str], log: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """A Prefect process in a session of its own; its whole group is gone afterwards."""
    # What a shell starts in the background ignores SIGINT, and hands that on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        started = subprocess.Popen(
            [sys.executable, "-m", "prefect", *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield started
    finally:
        started.terminate()
        with suppress(subprocess.TimeoutExpired):
            started.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(10)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).is_success
    except httpx.TransportError:
        return False


@pytest.fixture(autouse=True)
def own_events() -> Iterator[None]:
    """Prefect keeps the connection that events go by: no other test is to get this server's."""
    EventsWorker.drain_all(timeout=10)
    yield
    EventsWorker.drain_all(timeout=10)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, platform: LocalPlatform) -> Iterator[Deployed]:
    """A server with a home, a database and a port of its own.

    In its environment, which the worker gets too, are the credentials of the embedded
    platform for flows that name no block.
    """
    folder = tmp_path_factory.mktemp("deploy")
    home = folder / "prefect"
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "PRIME_")) and name != "EVALUATION_ID"
    }
    credentials = platform.credentials
    env = {
        **kept,
        "PRIME_API_KEY": credentials.api_key.get_secret_value(),
        "PRIME_API_BASE_URL": platform.url,
        "PRIME_FRONTEND_URL": platform.url,
        "PRIME_TRACES_URL": platform.url,
        "HOME": str(folder),
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        # By default a worker looks for work every 10 s.
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_PRIME_SPOOL_DIR": str(folder / "spool"),
        # One line stays one line where a test reads what a command printed.
        "COLUMNS": "200",
    }
    with (folder / "server.log").open("wb") as log:
        arguments = ["server", "start", "--host", "127.0.0.1", "--port", str(port), "--no-ui"]
        try:
            with (
                process(arguments, env, log) as running,
                SyncPrefectClient(api=url) as client,
            ):
                wait_until(lambda: running.poll() is not None or answers(url), seconds=240)
                assert running.poll() is None, (folder / "server.log").read_text()
                yield Deployed(url, env, client, folder)
        finally:
            for pid in own_processes(home):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def worker_of(server: Deployed, pool: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process worker, which makes its work pool."""
    path = server.folder / f"worker-{pool}.log"
    with path.open("wb") as log:
        arguments = ["worker", "start", "--pool", pool, "--type", "process"]
        with process(arguments, server.env, log) as worker:
            wait_until(lambda: worker.poll() is not None or server.pool_is_there(pool), seconds=120)
            assert worker.poll() is None, path.read_text()
            yield worker


@pytest.fixture(scope="session")
def deployed(server: Deployed) -> Iterator[Deployed]:
    """The server with a process worker, which made its work pool."""
    with worker_of(server, POOL):
        yield server


@pytest.fixture
def mortal(server: Deployed) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A work pool and its one worker, for a test to kill."""
    pool = f"mortal-{uuid4().hex[:8]}"
    with worker_of(server, pool) as worker:
        yield pool, worker


@pytest.fixture(scope="session")
def block(server: Deployed, platform: LocalPlatform) -> str:
    """The name of a credentials block on that server, told apart by its team."""
    values = {**dict(platform.credentials), "team_id": "of-the-block"}
    with temporary_settings({PREFECT_API_URL: server.url}):
        PrimeCredentials(**values).save("prime-deployed", overwrite=True)
    return "prime-deployed"


@pytest.fixture
def closed(evaluations: Evaluations) -> Callable[[str], dict[str, Any]]:
    """``closed(name)``: the one evaluation of that name, once it is closed.

    Its flow run has ended a moment before: the hook that closes it runs after the state is set.
    """

    def close(name: str) -> dict[str, Any]:
        (listed,) = evaluations.named(name)

        def ended() -> dict[str, Any] | None:
            evaluation = evaluations(listed["id"])
            return None if evaluation["status"] == "RUNNING" else evaluation

        return wait_until(ended)

    return close
