"""A platform that does as little as a server can: it counts bytes and says yes.

It runs in a process of its own, reads bodies into one buffer without looking at them, and
answers both services as their clients expect. It can be slow, away, or without Prime Traces.

``Stub`` starts it and talks to it; ``python -m benchmarks.stub`` is what it starts.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from typing import Any, Literal, Self

import httpx

#: ``slow``: an answer takes ten seconds. ``down``: connections end without an answer.
#: ``no-traces``: Prime Traces is not enabled for the account.
Mode = Literal["healthy", "slow", "down", "no-traces"]

SLOW_SECONDS = 10.0
_BUFFER_BYTES = 1 << 20


class Stub:
    """The stub in a process of its own; use it in ``with``."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "benchmarks.stub"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait()


def set_mode(url: str, mode: Mode) -> None:
    """From now on; answers that are held back are given at once."""
    httpx.post(f"{url}/stub", json={"mode": mode}).raise_for_status()


def received(url: str) -> dict[str, int]:
    """Bytes of the bodies so far, by what they were: ``traces``, ``samples``, ``other``."""
    counts: dict[str, int] = httpx.get(f"{url}/stub").raise_for_status().json()
    return counts


# -- the process itself -----------------------------------------------------------------


class _Platform:
    """What the stub knows: the evaluations' statuses, and how it is to behave."""

    def __init__(self) -> None:
        self.mode: Mode = "healthy"
        self.bytes = {"traces": 0, "samples": 0, "other": 0}
        self.held: dict[asyncio.TimerHandle, Callable[[], None]] = {}
        self._statuses: dict[str, str] = {}
        self._uploads = count(1)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        route = path.partition("?")[0].removeprefix("/api/v1").strip("/").split("/")
        if route == ["stub"]:
            return 200, self._control(body)
        if route == ["traces"]:
            if self.mode == "no-traces":
                refusal = {"code": "service_not_enabled", "message": "not enabled"}
                return 403, {"error": refusal}
            return 200, {"upload_id": f"{next(self._uploads):064x}", "status": "committed"}
        if route[0] == "environmentshub":
            return 200, {"data": {"id": "environment"}}
        if route == ["evaluations"]:
            return 200, self._create(body) if method == "POST" else self._list()
        return 200, self._evaluation(method, route, body)

    def _control(self, body: bytes) -> dict[str, int]:
        if body:
            self.mode = json.loads(body)["mode"]
            held, self.held = self.held, {}
            for handle, give in held.items():
                handle.cancel()
                give()
        return self.bytes

    def _create(self, body: bytes) -> dict[str, Any]:
        evaluation_id = f"evaluation-{len(self._statuses) + 1}"
        self._statuses[evaluation_id] = "RUNNING"
        return {"evaluation_id": evaluation_id, "name": json.loads(body)["name"]}

    def _list(self) -> dict[str, Any]:
        return {"evaluations": [], "total": 0, "skip": 0, "limit": 50}

    def _evaluation(self, method: str, route: list[str], body: bytes) -> dict[str, Any]:
        evaluation_id, *rest = route[1:]
        if rest == ["samples"]:
            return {"samples": [], "total": 0, "page": 1, "limit": 100, "has_more": False}
        if rest == ["finalize"]:
            self._statuses[evaluation_id] = "COMPLETED"
        elif method == "PUT" and "status" in (changes := json.loads(body)):
            self._statuses[evaluation_id] = changes["status"]
        status = self._statuses.get(evaluation_id, "RUNNING")
        return {"evaluation_id": evaluation_id, "status": status, "metadata": {}, "metrics": {}}


class _Connection(asyncio.BufferedProtocol):
    """One client's connection: requests one after the other."""

    transport: asyncio.Transport

    def __init__(self, platform: _Platform) -> None:
        self._platform = platform
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._head = bytearray()
        self._left: int | None = None  # of the body; None while the head is read
        self._kind = "other"
        self._body = bytearray()  # of what is small; uploads are counted only

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self._buffer[:nbytes]
        if self._left is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = memoryview(bytes(self._head[end + 4 :]))
            del self._head[end:]
            self._begin()
        assert self._left is not None
        self._left -= len(data)
        self._platform.bytes[self._kind] += len(data)
        if self._kind == "other":
            self._body += data
        if self._left <= 0:
            self._end()

    def _begin(self) -> None:
        request, *headers = self._head.decode("latin-1").split("\r\n")
        self._method, self._path, _ = request.split(" ")
        lengths = [line[15:] for line in headers if line.lower().startswith("content-length:")]
        self._left = int(lengths[0]) if lengths else 0
        self._kind = next((k for k in ("traces", "samples") if self._path.endswith(k)), "other")

    def _end(self) -> None:
        mode = self._platform.mode if self._path != "/stub" else "healthy"
        status, content = self._platform.answer(self._method, self._path, bytes(self._body))
        self._head.clear()
        self._body.clear()
        self._left = None
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 {status} OK\r\nContent-Type: application/json\r\nContent-Length: "
        answer = f"{head}{len(body)}\r\n\r\n".encode() + body
        if mode == "down":
            self.transport.abort()
        elif mode == "slow":
            self._hold(lambda: self.transport.write(answer))
        else:
            self.transport.write(answer)

    def _hold(self, give: Callable[[], None]) -> None:
        def give_now() -> None:
            self._platform.held.pop(handle, None)
            give()

        handle = asyncio.get_running_loop().call_later(SLOW_SECONDS, give_now)
        self._platform.held[handle] = give


async def _serve() -> None:
    platform = _Platform()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(platform), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
