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
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import SecretStr

from prefect_prime.credentials import Credentials
from prefect_prime.fields import check_api_key
from prefect_prime.local.app import API, api_routes, create_app
from prefect_prime.local.environments import publish
from prefect_prime.local.faults import Faults
from prefect_prime.local.faulty_app import FaultyApp
from prefect_prime.local.recorder import Recorder, RequestRecord
from prefect_prime.local.rules import (
    ClosedSamples,
    DuplicateTraces,
    Limits,
    Modes,
    StatusUpdates,
    TracesAccess,
)
from prefect_prime.local.server import Server, listener_on
from prefect_prime.local.store import Store
from prefect_prime.local.wire import Platform

HOST = "127.0.0.1"
MAX_PORT = 65_535
#: Seconds in which the server must answer after its start, and be gone after its stop.
START_TIMEOUT = 30.0
STOP_TIMEOUT = 15.0


class LocalPlatform:
    """The platform in this process, for as long as its ``with`` block runs.

    ``directory`` keeps the data; None is a temporary one that goes with the block.
    ``port`` 0 takes a free one. ``api_key`` None makes a new one. The modes and their
    values are explained in :mod:`prefect_prime.local.rules`; ``ValueError`` for an unknown
    one, and for a port or a key that cannot be. ``faults`` make it misbehave, as
    :mod:`prefect_prime.local.faults` explains.

    Entering raises ``OSError`` when the port is taken and
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
        faults: Faults | None = None,
    ) -> None:
        if not 0 <= port <= MAX_PORT:
            raise ValueError(f"port={port}: use 0 (a free one) to {MAX_PORT}.")
        self._given_directory = None if directory is None else Path(directory)
        self._port = port
        key = SecretStr(api_key or f"local-{secrets.token_urlsafe(24)}")
        try:
            self._api_key = check_api_key(key)
        except ValueError as exc:
            raise ValueError(f"api_key {exc}.") from None
        self._modes = Modes(
            status_updates=status_updates,
            closed_samples=closed_samples,
            duplicate_traces=duplicate_traces,
            traces=traces,
        )
        self._limits = limits or Limits()
        self._directory: Path | None = None
        self._platform: Platform | None = None
        self._faulty: FaultyApp | None = None
        self.faults = faults
        self._recorder: Recorder | None = None
        self._server: Server | None = None
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
        """The requests so far, oldest first; only the last 100,000."""
        return [] if self._recorder is None else list(self._recorder.requests.copy())

    @property
    def faults(self) -> Faults | None:
        """What requests meet. None, or others, takes effect at once, and ends what waits.

        A hanging request is reset then, a slow one answered, and new connections are no
        longer refused; a late commit still comes at its time.
        """
        return self._faults

    @faults.setter
    def faults(self, faults: Faults | None) -> None:
        if faults is not None:
            faults.check([route.name for route in api_routes()])
        self._faults = faults
        if self._faulty is not None:
            self._faulty.faults = faults

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
        listener = undo.enter_context(listener_on((HOST, self._port)))
        store = Store(directory)
        undo.callback(store.close)
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        self._platform = Platform(store=store, modes=self._modes, limits=self._limits, url=url)
        self._recorder = Recorder(create_app(self._platform, self._api_key))
        self._faulty = FaultyApp(self._recorder, api_routes(), API)
        self._server = self._faulty.server = Server(self._faulty)
        self._faulty.faults = self._faults
        self._thread = threading.Thread(
            target=self._serve, args=(self._server, listener), name="local-platform", daemon=True
        )
        self._thread.start()
        undo.callback(self._stop)
        if not self._server.settled.wait(START_TIMEOUT):
            raise TimeoutError(f"The platform did not listen within {START_TIMEOUT:.0f} s.")
        if self._thread_error is not None:
            raise self._thread_error

    def _serve(self, server: Server, listener: socket.socket) -> None:
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
