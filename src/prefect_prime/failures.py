"""What went wrong in the episodes of an evaluation, by type, in constant memory."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

#: Types that are kept by name; what comes after them counts together.
_NAMED = 20
_OTHERS = "(other types)"
#: Characters that are kept: of an example's message, of a type's name.
_MESSAGE = 300
_NAME = 80


@dataclass(slots=True)
class Failure:
    """Errors of one type: how many, and the first of them as an example."""

    type: str
    count: int
    message: str
    #: The record that the example comes from.
    record: str


class Failures:
    """Counts the errors of records as they pass."""

    def __init__(self) -> None:
        self._by_type: dict[str, Failure] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Count the errors of an episode and its traces, of a trace, or of a sample row."""
        name = str(record.get("id") or record.get("sample_id") or "")
        for part in (record, *(record.get("traces") or ())):
            for error in _errors(part):
                self._count(error, name)

    def merge(self, other: "Failures") -> None:
        """Count what another one has counted as well, which stays as it is."""
        for failure in other._by_type.values():  # noqa: SLF001 - one of this very class
            self._add(replace(failure))

    def _count(self, error: Any, record: str) -> None:
        name, message = "Error", error
        if isinstance(error, Mapping):
            name, message = error.get("type") or name, error.get("message") or ""
        self._add(Failure(str(name)[:_NAME], 1, str(message)[:_MESSAGE], record[:_MESSAGE]))

    def _add(self, failure: Failure) -> None:
        if failure.type not in self._by_type and len(self._by_type) >= _NAMED:
            failure.type = _OTHERS
        known = self._by_type.setdefault(failure.type, failure)
        if known is not failure:
            known.count += failure.count

    def by_type(self) -> list[Failure]:
        """The most frequent first."""
        return sorted(self._by_type.values(), key=lambda each: -each.count)

    def state(self) -> list[dict[str, Any]]:
        """Everything that ``from_state`` needs, as JSON-able values."""
        return [asdict(failure) for failure in self._by_type.values()]

    @classmethod
    def from_state(cls, state: list[dict[str, Any]]) -> "Failures":
        """Failures that go on where ``state`` was taken."""
        failures = cls()
        failures._by_type = {each["type"]: Failure(**each) for each in state}
        return failures


def _errors(record: Any) -> Iterator[Any]:
    if not isinstance(record, Mapping):
        return
    errors = record.get("errors")
    yield from errors if isinstance(errors, list | tuple) else ()
    if record.get("error"):  # of a sample row
        yield record["error"]
