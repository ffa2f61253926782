"""What came in, and what went wrong: every request is noted, every failure of a route kept."""

from collections import deque
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The requests that are remembered.
MAX_REQUESTS = 100_000
#: Under this name a request's scope knows the fault that it meets.
FAULT = "prefect_prime.fault"


@dataclass(frozen=True)
class RequestRecord:
    """One request: the platform's own answer, and the fault that its client met, if any.

    ``status`` is None if the platform never processed it. One that a ``late`` fault holds
    back is here when it is processed.
    """

    method: str
    path: str
    status: int | None
    fault: str | None = None


class Recorder:
    """Notes every answered request, and every failure of a route."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.requests: deque[RequestRecord] = deque(maxlen=MAX_REQUESTS)
        self.failures: list[Exception] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.note(scope, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except ClientDisconnect:
            pass  # nobody is left to answer, and no route has failed
        except Exception as exc:
            self.failures.append(exc)
            raise

    def note(self, scope: Scope, status: int | None) -> None:
        """Remember a request that was answered, or that will never be."""
        fault = scope["state"].get(FAULT)
        self.requests.append(RequestRecord(scope["method"], scope["path"], status, fault))
