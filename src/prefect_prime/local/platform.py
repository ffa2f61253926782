"""``LocalPlatform``: the platform's API on this machine, over real HTTP.

It listens on 127.0.0.1 only, in a thread of this process, and keeps everything in one
SQLite file in its directory, the API key excepted. What goes wrong in the thread is
raised where somebody looks: at the start, and at the end if the block itself succeeded.
"""

import contextlib
import secrets
import shutil
import socket
import tempfile
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn
from pydantic import SecretStr
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prefect_prime.credentials import Credentials
from prefect_prime.local.app import create_app
from prefect_prime.local.environments import publish
from prefect_prime.local.rules import (
    ClosedSamples,
    DuplicateTraces,
    Limits,
    Modes,
    StatusUpdates,
    TracesAccess,
)
from prefect_prime.local.store import Store
from prefect_prime.local.wire import Platform

HOST = "127.0.0.1"
MAX_PORT = 65_535
#: Seconds in which the server must answer after its start, and be gone after its stop.
START_TIMEOUT = 30.0
STOP_TIMEOUT = 15.0
#: Seconds that an idle connection stays open. Longer than any pause of an eval that still
#: sends: a connection that closes under a request looks like a lost answer.
KEEP_ALIVE = 120
#: The requests that are remembered.
MAX_REQUESTS = 100_000
#: Seconds that requests in flight get to finish at the stop.
DRAIN_TIMEOUT = 5


@dataclass(frozen=True)
class RequestRecord:
    """One request that was answered."""

    method: str
    path: str
    status: int


class _Recorder:
    """Notes every answered request, and every failure of a route."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.requests: deque[RequestRecord] = deque(maxlen=MAX_REQUESTS)
        self.failures: list[Exception] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.requests.append(
                    RequestRecord(scope["method"], scope["path"], message["status"])
                )
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except ClientDisconnect:
            pass  # nobody is left to answer, and no route has failed
        except Exception as exc:
            self.failures.append(exc)
            raise


class _Server(uvicorn.Server):
    """A server that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.settled.set()


class LocalPlatform:
    """The platform in this process, for as long as its ``with`` block runs.

    ``directory`` keeps the data; None is a temporary one that goes with the block.
    ``port`` 0 takes a free one. ``api_key`` None makes a new one. The modes and their
    values are explained in :mod:`prefect_prime.local.rules`; ``ValueError`` for an unknown
    one, and for a port that cannot be. Entering raises ``OSError`` when the port is taken and
    ``sqlite3.DatabaseError`` when the directory holds another kind of file. Leaving raises
    the first failure of a route, if nothing else is being raised.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        port: int = 0,
        *,
        api_key: str | None = None,
        status_updates: StatusUpdates = "accept",
        closed_samples: ClosedSamples = "accept",
        duplicate_traces: DuplicateTraces = "replace",
        traces: TracesAccess = "enabled",
        limits: Limits | None = None,
    ) -> None:
        if not 0 <= port <= MAX_PORT:
            raise ValueError(f"port={port}: use 0 (a free one) to {MAX_PORT}.")
        self._given_directory = None if directory is None else Path(directory)
        self._port = port
        self._api_key = SecretStr(api_key or f"local-{secrets.token_urlsafe(24)}")
        self._modes = Modes(
            status_updates=status_updates,
            closed_samples=closed_samples,
            duplicate_traces=duplicate_traces,
            traces=traces,
        )
        self._limits = limits or Limits()
        self._directory: Path | None = None
        self._platform: Platform | None = None
        self._recorder: _Recorder | None = None
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._thread_error: BaseException | None = None

    @property
    def url(self) -> str:
        """The root of every API and of the pages, without a slash at its end."""
        return self._running.url

    @property
    def credentials(self) -> Credentials:
        """What a client needs to use this platform."""
        url = self.url
        return Credentials(
            api_key=self._api_key, team_id=None, base_url=url, frontend_url=url, traces_url=url
        )

    @property
    def directory(self) -> Path:
        """Where the data is."""
        if self._directory is None:
            raise RuntimeError(_NOT_STARTED)
        return self._directory

    @property
    def requests(self) -> list[RequestRecord]:
        """The requests answered so far, oldest first; only the last 100,000."""
        return [] if self._recorder is None else list(self._recorder.requests.copy())

    def publish_environment(self, slug: str) -> str:
        """Publish ``owner/name``, for look-ups by that name; returns its id.

        Publishing it again returns the same id. ``ValueError`` for another form.
        """
        return publish(self._running.store, slug)

    def stop(self) -> None:
        """Ask the server to end; :meth:`wait` and the end of the block wait for it."""
        if self._server is not None:
            self._server.should_exit = True

    def wait(self) -> None:
        """Return when the server has ended, by :meth:`stop` or by itself."""
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        if self._directory is not None:
            raise RuntimeError("This platform ran already: make a new LocalPlatform.")
        with contextlib.ExitStack() as undo:
            self._start(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._undo.close()
        if exc is None:
            if self._thread_error is not None:
                raise self._thread_error
            if self._recorder is not None and self._recorder.failures:
                raise self._recorder.failures[0]

    @property
    def _running(self) -> Platform:
        if self._platform is None:
            raise RuntimeError(_NOT_STARTED)
        return self._platform

    def _start(self, undo: contextlib.ExitStack) -> None:
        directory = self._given_directory
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="prefect-prime-local-"))
            undo.callback(shutil.rmtree, directory, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        # asyncio turns Nagle's algorithm off only where the protocol is spelled out, and
        # with it on every answer waits 40 ms for an acknowledgement.
        listener = undo.enter_context(
            socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        )
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, self._port))
        store = Store(directory)
        undo.callback(store.close)
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        self._platform = Platform(store=store, modes=self._modes, limits=self._limits, url=url)
        self._recorder = _Recorder(create_app(self._platform, self._api_key))
        self._server = _Server(
            uvicorn.Config(
                self._recorder,
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="off",
                ws="none",
                loop="asyncio",
                http="h11",
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=DRAIN_TIMEOUT,
            )
        )
        self._thread = threading.Thread(
            target=self._serve, args=(self._server, listener), name="local-platform", daemon=True
        )
        self._thread.start()
        undo.callback(self._stop)
        if not self._server.settled.wait(START_TIMEOUT):
            raise TimeoutError(f"The platform did not listen within {START_TIMEOUT:.0f} s.")
        if self._thread_error is not None:
            raise self._thread_error

    def _serve(self, server: _Server, listener: socket.socket) -> None:
        try:
            server.run(sockets=[listener])
        except BaseException as exc:  # noqa: BLE001 - raised again in the owner's thread
            self._thread_error = exc
        finally:
            server.settled.set()

    def _stop(self) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT)
            if self._thread.is_alive():
                raise TimeoutError(f"The platform did not end within {STOP_TIMEOUT:.0f} s.")


_NOT_STARTED = "The platform is not running: use it in `with LocalPlatform() as platform:`."
