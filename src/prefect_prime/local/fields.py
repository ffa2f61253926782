"""A JSON object of an upload, read field by field; absent and null are the same."""

from typing import Any

import orjson
from prime_traces import ErrorCode

from prefect_prime.local.rules import MAX_INTEGER
from prefect_prime.local.wire import TracesError, rejected


class Record:
    """An object ``at`` some place in the upload; a field of another type is ``invalid_trace``."""

    __slots__ = ("_at", "_parent", "value")

    def __init__(self, value: Any, at: str, parent: "Record | None" = None) -> None:
        self._at = at
        self._parent = parent
        if not isinstance(value, dict):
            raise self.invalid("is not an object")
        self.value: dict[str, Any] = value

    @property
    def where(self) -> str:
        """The path to this object, put together only when something is wrong with it."""
        return self._at if self._parent is None else f"{self._parent.where}.{self._at}"

    def invalid(self, problem: str) -> TracesError:
        """The rejection that says where ``problem`` is."""
        return rejected(ErrorCode.INVALID_TRACE, f"{self.where} {problem}")

    def section(self, key: str) -> "Record":
        """The object under ``key``; an empty one if there is none."""
        value = self.value.get(key)
        return Record({} if value is None else value, key, self)

    def objects(self, key: str) -> "list[Record]":
        """The list of objects under ``key``."""
        value = self.value.get(key)
        if value is not None and not isinstance(value, list):
            raise self.invalid(f"has a {key} that is not a list")
        return [Record(item, f"{key}[]", self) for item in value or ()]

    def text(self, key: str) -> str | None:
        """The string under ``key``."""
        value = self.value.get(key)
        if value is not None and not isinstance(value, str):
            raise self.invalid(f"has a {key} that is not a string")
        return value

    def identifier(self) -> str:
        """The ``id``, which must be there."""
        value = self.text("id")
        if not value:
            raise self.invalid("has no id")
        return value

    def number(self, key: str) -> float | None:
        """The number under ``key``, an int or a float."""
        value = self.value.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise self.invalid(f"has a {key} that is not a number")
        return value

    def integer(self, key: str) -> int | None:
        """The integer under ``key``, of at most 64 bits."""
        value = self.number(key)
        if value is not None and (not isinstance(value, int) or abs(value) > MAX_INTEGER):
            raise self.invalid(f"has a {key} that is not a 64-bit integer")
        return value

    def encoded(self) -> bytes:
        """The object as JSON; ``invalid_trace`` when it is nested too deeply to be written."""
        try:
            return orjson.dumps(self.value)
        except orjson.JSONEncodeError:
            raise self.invalid("is nested too deeply") from None
