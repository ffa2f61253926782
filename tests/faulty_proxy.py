"""A proxy before the embedded platform that misbehaves on demand, over real sockets.

Whether a request was processed is what clients cannot see of a lost answer: each fault that
loses one comes in a *before* form (the platform never saw the request) and an *after* form.
"""

import http.client
import socket
import socketserver
import struct
import threading
from collections.abc import Callable
from typing import Literal, Self
from urllib.parse import urlsplit

from prefect_prime.credentials import Credentials
from prefect_prime.local import LocalPlatform

Fault = Literal[
    "429", "502 before", "502 after", "reset before", "reset after", "hang before", "hang after"
]
#: Answers with a fault, or nothing, for a method and a path; may wait to be a slow platform.
Decide = Callable[[str, str], Fault | None]
#: Is told of each request that the platform has answered, before its client is.
Processed = Callable[[str, str], None]

#: Headers that are about one connection only.
_HOP = frozenset({"transfer-encoding", "connection", "content-length"})


def healthy(_method: str, _path: str) -> Fault | None:
    return None


def _ignore(_method: str, _path: str) -> None:
    pass


class FaultyProxy:
    """Use it in ``with``; ``credentials`` lead through it. ``decide`` may change at any time."""

    def __init__(self, platform: LocalPlatform, decide: Decide = healthy) -> None:
        self.decide = decide
        self.processed: Processed = _ignore
        #: A hanging request hangs until this is set.
        self.let_go = threading.Event()
        self.upstream = urlsplit(platform.url).netloc
        self._platform = platform
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def credentials(self) -> Credentials:
        return self._platform.credentials.model_copy(
            update={"base_url": self.url, "traces_url": self.url}
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(socketserver.StreamRequestHandler):
    """One client's connection, and one of its own to the platform."""

    #: Else Nagle's algorithm makes every answer late by 40 ms.
    disable_nagle_algorithm = True
    server: "_Server"

    def handle(self) -> None:
        upstream = http.client.HTTPConnection(self.server.proxy.upstream)
        try:
            while self._one(upstream):
                pass
        except OSError:
            pass  # a client that was killed, or a platform that was stopped
        finally:
            upstream.close()

    def _one(self, upstream: http.client.HTTPConnection) -> bool:
        """Handle one request; whether the connection goes on."""
        proxy = self.server.proxy
        line = self.rfile.readline().decode("latin-1").split()
        if len(line) < 3:
            return False
        method, path = line[0], line[1]
        headers = http.client.parse_headers(self.rfile)
        body = self._body(headers)
        if body is None:
            return False  # torn by its client's death
        fault = proxy.decide(method, path)
        if fault is None or fault.endswith("after"):
            upstream.request(method, path, body or None, _end_to_end(headers.items()))
            answer = upstream.getresponse()
            content = answer.read()
            proxy.processed(method, path)
            if fault is None:
                self._answer(answer.status, _end_to_end(answer.getheaders()), content)
                return True
        return self._misbehave(fault)

    def _misbehave(self, fault: Fault) -> bool:
        if fault == "429" or fault.startswith("502"):
            status = 429 if fault == "429" else 502
            self._answer(status, {"Content-Type": "text/html"}, b"<h1>proxy</h1>")
            return True
        if fault.startswith("hang"):
            self.server.proxy.let_go.wait()
        else:
            # Closing is then a reset, not an end of file.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return False

    def _body(self, headers: http.client.HTTPMessage) -> bytes | None:
        """The body; None if its sender died on the way."""
        if headers.get("Transfer-Encoding", "").lower() != "chunked":
            length = int(headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            return body if len(body) == length else None
        body = b""
        while size := int(self.rfile.readline() or b"-1", 16):
            if size < 0:
                return None
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        head = [f"HTTP/1.1 {status} {http.client.responses[status]}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        head += [f"Content-Length: {len(content)}", "", ""]
        self.wfile.write("\r\n".join(head).encode("latin-1") + content)


def _end_to_end(headers: "list[tuple[str, str]]") -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in _HOP}


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 100

    def __init__(self, proxy: FaultyProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)

    def shutdown_request(self, request: "socket.socket | tuple[bytes, socket.socket]") -> None:
        self.close_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # as above: whoever was killed or stopped is no failure of a test
