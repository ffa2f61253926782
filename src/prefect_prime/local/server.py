"""The HTTP server of the embedded platform: what happens below a request.

A route only ever sees requests; resetting a connection, or refusing new ones for a while,
is done here, to real sockets.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any, cast

import h11
import uvicorn
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds that an idle connection stays open. Longer than any pause of an eval that still
#: sends: a connection that closes under a request looks like a lost answer.
KEEP_ALIVE = 120
#: Seconds that requests in flight get to finish at the stop.
DRAIN_TIMEOUT = 5
#: Under this name a request's scope knows the connection that it came on.
_TRANSPORT = "prefect_prime.transport"
#: With it, closing a socket is a reset, not an end of file.
_LINGER_NOT = struct.pack("ii", 1, 0)


class _Protocol(H11Protocol):
    """One connection, which its requests know."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.app_state = {**self.app_state, _TRANSPORT: transport}
        super().connection_made(transport)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; a request that is still served before it has lost its client."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # in the middle of an answer, or after it
            self.transport.close()


def transport_of(scope: Scope) -> asyncio.Transport:
    """The connection that a request came on."""
    state: MutableMapping[str, Any] = scope["state"]
    return cast("asyncio.Transport", state[_TRANSPORT])


def reset(transport: asyncio.Transport) -> None:
    """Close a connection so that its client sees a reset, and nothing more of an answer."""
    with contextlib.suppress(OSError):  # its client was quicker
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT
        )
    transport.abort()


def listener_on(address: tuple[str, int]) -> socket.socket:
    """A socket that holds the address and does not listen yet: connecting to it is refused."""
    # asyncio turns Nagle's algorithm off only where the protocol is spelled out, and with
    # it on every answer waits 40 ms for an acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


class Server(uvicorn.Server):
    """A server that says when it listens and when it ends, and that can be away for a while."""

    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="off",
                ws="none",
                loop="asyncio",
                http=_Protocol,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=DRAIN_TIMEOUT,
            )
        )
        self.settled = threading.Event()
        #: Set in the server's own loop when it ends: whoever waits there waits no longer.
        self.stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._back_at = 0.0
        self._return: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.settled.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what waits, then everything."""
        self.stopping.set()
        if self._return is not None:
            await self._return
        await super().shutdown(sockets)

    def soon(self, callback: Callable[[], None]) -> None:
        """Have the server's loop call this, if it runs; from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                self._loop.call_soon_threadsafe(callback)

    def refuse(self, seconds: float, over: asyncio.Event) -> None:
        """Refuse new connections for so long, or until it is over; those that are there go on."""
        self._back_at = max(self._back_at, asyncio.get_running_loop().time() + seconds)
        if self._return is None and not self.stopping.is_set():
            (server,) = self.servers
            address = server.sockets[0].getsockname()
            server.close()
            self._return = asyncio.create_task(self._come_back(listener_on(address), over))

    def reset_all(self) -> None:
        """Reset every connection."""
        for connection in list(self.server_state.connections):
            reset(cast("_Protocol", connection).transport)

    async def pause(
        self, seconds: float | None, over: asyncio.Event, *others: Coroutine[Any, Any, None]
    ) -> None:
        """Wait for so long, until it is ``over``, one of the ``others`` returns, or the end."""
        waits = [asyncio.create_task(each) for each in (over.wait(), self.stopping.wait(), *others)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _come_back(self, listener: socket.socket, over: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while (left := self._back_at - loop.time()) > 0:
            await self.pause(left, over)
            if over.is_set() or self.stopping.is_set():
                break
        self._return, self._back_at = None, 0.0
        if self.stopping.is_set():
            listener.close()
        else:
            await self.startup([listener])
