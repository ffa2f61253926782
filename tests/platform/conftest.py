"""A platform that answers over real HTTP what a test prescribes, and keeps what it was asked."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Literal, Self

import pytest

from prefect_prime.credentials import Credentials
from prefect_prime.platform_client import PlatformClient

KEY = "pit_0123456789abcdef"


@dataclass
class Reply:
    """``drop`` closes without an answer, ``reset`` resets, ``stall`` answers never."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    action: Literal["answer", "drop", "reset", "stall"] = "answer"

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: tuple[str, int]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ScriptedPlatform:
    """Answers with ``script`` in order, its last reply again and again."""

    Reply = Reply

    def __init__(self, port: int = 0) -> None:
        self.script: list[Reply] = [Reply()]
        self.asked: list[Asked] = []
        self.failures: list[BaseException] = []
        self.released = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.platform = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        assert self.failures == []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def sent(self) -> list[str]:
        return [f"{asked.method} {asked.path}" for asked in self.asked]

    def credentials(self, **fields: Any) -> Credentials:
        return Credentials(**{"api_key": KEY, "base_url": self.url, **fields})

    def take(self, asked: Asked) -> Reply:
        with self._lock:
            reply = self.script[min(len(self.asked), len(self.script) - 1)]
            self.asked.append(asked)
            return reply


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    platform: ScriptedPlatform


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    quiet: ClassVar = (ConnectionError, TimeoutError)

    def _serve(self) -> None:
        platform = self.server.platform
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = platform.take(
            Asked(self.command, self.path, headers, body, self.client_address[:2])
        )
        if reply.action == "stall":
            platform.released.wait(30)
        if reply.action == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if reply.action != "answer":
            self.close_connection = True
            return
        try:
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.content)))
            self.end_headers()
            self.wfile.write(reply.content)
        except self.quiet:
            self.close_connection = True

    do_GET = do_POST = do_PUT = _serve  # noqa: N815 - the base class looks for these names

    def log_message(self, *_: object) -> None:
        """Silent: pytest shows what a test asserts."""


@pytest.fixture
def scripted() -> Iterator[ScriptedPlatform]:
    with ScriptedPlatform() as running:
        yield running


@pytest.fixture
def slept() -> list[float]:
    """Seconds that ``client`` would have waited."""
    return []


@pytest.fixture
def client(scripted: ScriptedPlatform, slept: list[float]) -> Iterator[PlatformClient]:
    credentials = scripted.credentials(team_id="team")
    with PlatformClient(credentials, sleep=slept.append) as opened:
        yield opened


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def start_platform() -> Iterator[Callable[..., ScriptedPlatform]]:
    """Starts further platforms; all are stopped after the test."""
    with ExitStack() as started:
        yield lambda port=0: started.enter_context(ScriptedPlatform(port))
