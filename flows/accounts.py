"""Credentials by the platform they are for, for whoever finishes other flows' evaluations."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Self

from prefect_prime.credentials import Credentials
from prefect_prime.flows.credentials import load_credentials
from prefect_prime.settings import Settings


class Accounts:
    """The credentials that are to be had."""

    def __init__(self, known: Iterable[Credentials | None]) -> None:
        self._known = [each for each in known if each is not None]

    @classmethod
    def load(cls, named: str | Sequence[str] | None, settings: Settings) -> Self:
        """From blocks by name, or else from the environment.

        Raises ``ConfigurationError`` for a block that does not load.
        """
        names = [named] if named is None or isinstance(named, str) else list(named)
        return cls(load_credentials(name, settings) for name in names)

    def for_origin(self, origin: str | None) -> Credentials | None:
        """Those for a platform; for a run that never knew its platform, the first."""
        if origin is None:
            return self._known[0] if self._known else None
        return next((each for each in self._known if each.origin == origin), None)

    def __iter__(self) -> Iterator[Credentials]:
        return iter({each.origin: each for each in self._known}.values())
