"""The application behind its faults: every request is decided on, then served or spoiled.

Whatever a client is to see, its request is read to the end first, as by a gateway: so a
``reset before`` looks to it exactly as a ``reset after``.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from time import time
from typing import Any, TypeAlias

import orjson
from prime_traces import ErrorCode
from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from prefect_prime.local.fault import Fault
from prefect_prime.local.faults import Arrival, Faults
from prefect_prime.local.recorder import FAULT, Recorder
from prefect_prime.local.server import Server, reset, transport_of

_HTML = b"<!doctype html><title>Sign in</title><h1>Sign in</h1>"
#: Statuses whose answers come from a gateway before the platform: pages, not JSON.
_GATEWAY = frozenset({502, 504})
#: The codes of Prime Traces by status; others of its answers have none, as a gateway's.
_CODES = {
    401: ErrorCode.UNAUTHENTICATED,
    403: ErrorCode.FORBIDDEN,
    429: ErrorCode.RATE_LIMITED,
    503: ErrorCode.INGEST_UNAVAILABLE,
}
_Header: TypeAlias = tuple[bytes, bytes]
#: A status, a content type, a body, and more headers.
_Answer: TypeAlias = tuple[int, bytes, bytes, *tuple[_Header, ...]]


@dataclass(frozen=True)
class Route:
    """One route of the API: its name, the paths that it serves, and whose form its errors have."""

    name: str
    method: str
    path: re.Pattern[str]
    is_traces: bool


@dataclass
class _Call:
    """One request on its way."""

    scope: Scope
    receive: Receive
    send: Send
    route: Route
    arrival: Arrival
    processed: Callable[[Arrival], None] | None
    over: asyncio.Event


@dataclass
class _Set:
    """The faults that are set, the requests so far, and whether others are set since."""

    faults: Faults | None
    counts: Counter[str] = field(default_factory=Counter)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class FaultyApp:
    """``app`` behind the faults that are set; its own answers are untouched by them."""

    def __init__(self, app: Recorder, routes: Iterable[Route], prefix: str) -> None:
        self._app = app
        self._routes = list(routes)
        self._prefix = prefix
        self._late: set[asyncio.Task[None]] = set()
        self._set = _Set(None)
        #: The server that serves this application.
        self.server: Server

    @property
    def faults(self) -> Faults | None:
        """What requests meet; setting it ends what waits, and starts to count anew."""
        return self._set.faults

    @faults.setter
    def faults(self, faults: Faults | None) -> None:
        before, self._set = self._set, _Set(faults)
        self.server.soon(before.over.set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or spoil it."""
        current = self._set
        faults = current.faults
        route = None if faults is None else self._route(scope)
        if faults is None or route is None:
            await self._app(scope, receive, send)
            return
        current.counts[route.name] += 1
        arrival = Arrival(scope["method"], scope["path"], route.name, current.counts[route.name])
        call = _Call(scope, receive, send, route, arrival, faults.processed, current.over)
        fault = await run_in_threadpool(faults.decide, arrival)
        if fault is None:
            await _deliver(call, await self._process(call))
            return
        scope["state"][FAULT] = str(fault)
        if fault.when == "after":
            if answer := await self._process(call):
                await self._spoil(call, fault, answer)
            return
        body = await _body(call)
        if body is None:
            return  # the client went before it had sent everything
        if fault.when == "late":
            self._process_later(call, body, fault.seconds)
        else:
            self._app.note(scope, None)
        await self._spoil(call, fault, [])

    def _route(self, scope: Scope) -> Route | None:
        path = scope["path"].removeprefix(self._prefix)
        if path == scope["path"]:
            return None
        for route in self._routes:
            if route.method == scope["method"] and route.path.match(path):
                return route
        return None

    async def _process(self, call: _Call) -> list[Message]:
        """The platform's own answer; an empty one if the client has gone."""
        answer: list[Message] = []

        async def keep(message: Message) -> None:
            answer.append(message)

        await self._app(call.scope, call.receive, keep)
        if call.processed is not None:
            await run_in_threadpool(call.processed, call.arrival)
        return answer

    def _process_later(self, call: _Call, body: bytes, seconds: float | None) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def process() -> None:
            # It is on its way, whatever faults are set meanwhile.
            await self.server.pause(seconds, asyncio.Event())
            if not self.server.stopping.is_set():
                await self._process(replace(call, receive=receive))

        task = asyncio.create_task(process())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _spoil(self, call: _Call, fault: Fault, answer: list[Message]) -> None:
        match fault.kind:
            case "html":
                await _send(call, 200, b"text/html", _HTML)
            case "slow":
                await self.server.pause(fault.seconds, call.over, _gone(call))
                await _deliver(call, answer)
            case "truncated":
                await _truncate(call, answer)
            case "hang":
                await self.server.pause(fault.seconds, call.over, _gone(call))
                await _reset(call)
            case "reset":
                await _reset(call)
            case "refuse" | "restart":
                self.server.refuse(fault.seconds or 0, call.over)
                if fault.kind == "restart":
                    self.server.reset_all()
                await _reset(call)
            case _:
                await _send(call, *_error(call, fault))


async def _body(call: _Call) -> bytes | None:
    """The whole body; None if the client went while it sent it."""
    chunks: list[bytes] = []
    while True:
        message = await call.receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _gone(call: _Call) -> None:
    while (await call.receive())["type"] != "http.disconnect":
        pass


async def _deliver(call: _Call, answer: list[Message]) -> None:
    for message in answer:
        await call.send(message)


async def _send(call: _Call, status: int, kind: bytes, body: bytes, *headers: _Header) -> None:
    length = (b"content-length", str(len(body)).encode())
    start = {"status": status, "headers": [(b"content-type", kind), length, *headers]}
    await call.send({"type": "http.response.start", **start})
    await call.send({"type": "http.response.body", "body": body})


async def _reset(call: _Call) -> None:
    reset(transport_of(call.scope))
    await _gone(call)


async def _truncate(call: _Call, answer: list[Message]) -> None:
    start, *rest = answer
    body = b"".join(message.get("body", b"") for message in rest)
    if body:  # without one the whole answer is the head, and none of it arrives
        await call.send(start)
        half = body[: len(body) // 2]
        await call.send({"type": "http.response.body", "body": half, "more_body": True})
    transport_of(call.scope).close()
    await _gone(call)


def _error(call: _Call, fault: Fault) -> _Answer:
    status = fault.status or 0
    headers = []
    if fault.retry_after is not None:
        moment = formatdate(time() + fault.retry_after, usegmt=True)
        value = moment if fault.as_date else str(fault.retry_after)
        headers.append((b"retry-after", value.encode()))
    code = _CODES.get(status)
    if status in _GATEWAY or (call.route.is_traces and code is None):
        return (status, b"text/html", b"<h1>%d from the gateway</h1>" % status, *headers)
    body: dict[str, Any] = {"detail": f"the fault {fault}"}
    if call.route.is_traces:
        body = {"error": {"code": code, "message": f"the fault {fault}"}}
    return (status, b"application/json", orjson.dumps(body), *headers)
