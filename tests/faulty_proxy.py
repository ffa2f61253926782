"""A second door to a platform's data that misbehaves on demand, over real sockets.

It is a platform of its own on the same directory, with faults: what goes wrong there does not
touch the tests' own requests, which take the first door.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeAlias

from prefect_prime.credentials import Credentials
from prefect_prime.local import Arrival, Faults, LocalPlatform

#: As :mod:`prefect_prime.local.fault` writes them.
Fault: TypeAlias = str
#: Answers with a fault, or nothing, for a method and a path; may wait to be a slow platform.
Decide = Callable[[str, str], Fault | None]
#: Is told of each request that the platform has answered, before its client is.
Processed = Callable[[str, str], None]


def healthy(_method: str, _path: str) -> Fault | None:
    return None


def _ignore(_method: str, _path: str) -> None:
    pass


class FaultyProxy:
    """Use it in ``with``; ``credentials`` lead through it. ``decide`` may change at any time."""

    def __init__(self, platform: LocalPlatform, decide: Decide = healthy) -> None:
        self.decide = decide
        self.processed: Processed = _ignore
        key = platform.credentials.api_key.get_secret_value()
        self._door = LocalPlatform(
            platform.directory,
            api_key=key,
            faults=self._faults(),
            limits=platform._limits,
            **vars(platform._modes),
        )

    def _faults(self) -> Faults:
        def decide(arrival: Arrival) -> Fault | None:
            return self.decide(arrival.method, arrival.path)

        def processed(arrival: Arrival) -> None:
            self.processed(arrival.method, arrival.path)

        return Faults({"*": decide}, processed=processed)

    @property
    def url(self) -> str:
        return self._door.url

    @property
    def credentials(self) -> Credentials:
        return self._door.credentials

    def processed_requests(self, end: str) -> int:
        """How many requests with such an end of their path came to be processed."""
        return sum(
            request.status is not None and request.path.endswith(end)
            for request in self._door.requests
        )

    def let_go(self) -> None:
        """End what hangs."""
        self._door.faults = self._faults()

    def __enter__(self) -> Self:
        self._door.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._door.__exit__(kind, error, traceback)
