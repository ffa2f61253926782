"""Filters, pages and cursors of the traces reads.

A cursor is the position after which the next page starts, bound to the filters that
produced it: with others it is ``invalid_cursor``. A parameter that a route does not know
is ``invalid_filter``, as is a value that cannot be read: silently listing everything
would look like an answer.
"""
# ruff: noqa: S608 - SQL is put together from constants; every value is bound

import base64
import binascii
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from fastapi import Request
from prime_traces import ErrorCode

from prefect_prime.local.rules import MAX_INTEGER
from prefect_prime.local.wire import TracesError, rejected

#: The most parameters of one read, a repeated one counted once: SQLite takes some 900
#: conditions, and nobody means so many.
MAX_PARAMETERS = 100
#: The largest page of a traces read, and its size when none is asked for.
MAX_LIMIT = 100


def text(value: str) -> str:
    """The value as it is."""
    return value


def number(value: str) -> float:
    """A finite number."""
    parsed = float(value)
    if not math.isfinite(parsed):
        raise ValueError("not finite")
    return parsed


def integer(value: str) -> int:
    """An integer of at most 64 bits."""
    parsed = int(value)
    if abs(parsed) > MAX_INTEGER:
        raise ValueError("over 64 bits")
    return parsed


def boolean(value: str) -> bool:
    """``true`` or ``false``, in any case."""
    return {"true": True, "false": False}[value.lower()]


def timestamp(value: str) -> int:
    """ISO 8601, without an offset in UTC, as microseconds since 1970."""
    parsed = datetime.fromisoformat(value)
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return round(parsed.timestamp() * 1_000_000)


def iso(microseconds: int) -> str:
    """Microseconds since 1970 as ISO 8601, UTC."""
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC).isoformat()


@dataclass(frozen=True)
class Filter:
    """One query parameter: how its value is read, and the SQL that it adds.

    A filter that may be repeated matches any of its values; its SQL reads them from
    ``json_each(?)``. One without SQL is used by the route itself. Those ``of_member`` are
    about a trace ``t`` of an episode ``e``: one trace must match all of them.
    """

    parse: Callable[[str], Any]
    sql: str = ""
    repeats: bool = False
    of_member: bool = False


@dataclass
class Query:
    """A request's parameters: ``values`` by name, the WHERE clause, the page."""

    values: dict[str, Any] = field(default_factory=dict)
    own: list[tuple[str, list[Any]]] = field(default_factory=list)
    of_member: list[tuple[str, list[Any]]] = field(default_factory=list)
    limit: int = MAX_LIMIT
    after: list[Any] | None = None
    fingerprint: str = ""

    @property
    def where(self) -> str:
        """The filters as SQL, true when there are none."""
        clauses = [sql for sql, _ in self.own]
        if self.of_member:
            member = " AND ".join(sql for sql, _ in self.of_member)
            clauses.append(
                f"EXISTS (SELECT 1 FROM traces t WHERE t.episode_id = e.episode_id AND {member})"
            )
        return " AND ".join(clauses) or "1"

    @property
    def arguments(self) -> list[Any]:
        """The values of the placeholders in ``where``."""
        return [value for _, values in (*self.own, *self.of_member) for value in values]

    def add(self, spec: Filter, *arguments: Any) -> None:
        """Select by ``spec`` too."""
        (self.of_member if spec.of_member else self.own).append((spec.sql, list(arguments)))

    def cursor(self, *position: Any) -> str:
        """The cursor of a page that ends at ``position``."""
        return base64.urlsafe_b64encode(orjson.dumps([self.fingerprint, *position])).decode()


def read_query(
    request: Request,
    filters: Mapping[str, Filter],
    *,
    cursor: tuple[type, ...],
    context: Filter | None = None,
    default_limit: int = MAX_LIMIT,
) -> Query:
    """The request's parameters by ``filters``; ``cursor`` gives the types of a position.

    ``context`` is the filter of ``context.<key>`` parameters; it takes a key and a value.
    """
    query = Query(limit=default_limit)
    given: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        given.setdefault(name, []).append(value)
    if len(given) > MAX_PARAMETERS:
        raise invalid_filter(f"the read has {len(given)} parameters, over {MAX_PARAMETERS}")
    page = {name: given.pop(name)[-1] for name in ("limit", "cursor") if name in given}
    for name, raw in given.items():
        if context is not None and name.startswith("context."):
            query.add(context, name.removeprefix("context."), raw[-1])
        elif name in filters:
            _apply(query, name, filters[name], raw)
        else:
            raise invalid_filter(f"{name!r} is not a parameter of this read")
    described = orjson.dumps([request.url.path, sorted(given.items())])
    query.fingerprint = hashlib.sha256(described).hexdigest()[:16]
    if "limit" in page:
        query.limit = _parsed("limit", integer, page["limit"])
        if not 1 <= query.limit <= MAX_LIMIT:
            raise invalid_filter(f"limit must be 1 to {MAX_LIMIT}")
    if "cursor" in page:
        query.after = _position(page["cursor"], query.fingerprint, cursor)
    return query


def invalid_filter(message: str) -> TracesError:
    """The 400 for parameters that cannot be used."""
    return rejected(ErrorCode.INVALID_FILTER, message)


def _apply(query: Query, name: str, spec: Filter, raw: list[str]) -> None:
    if not spec.repeats and len(raw) > 1:
        raise invalid_filter(f"{name} is given {len(raw)} times")
    values = [_parsed(name, spec.parse, value) for value in raw]
    query.values[name] = values if spec.repeats else values[0]
    if spec.sql:
        query.add(spec, orjson.dumps(values).decode() if spec.repeats else values[0])


def _parsed(name: str, parse: Callable[[str], Any], value: str) -> Any:
    try:
        return parse(value)
    except (ValueError, KeyError, OverflowError):
        raise invalid_filter(f"{name}={value!r} cannot be read") from None


def _position(cursor: str, fingerprint: str, types: tuple[type, ...]) -> list[Any]:
    position: list[Any]
    try:
        bound, *position = orjson.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (binascii.Error, orjson.JSONDecodeError, TypeError, ValueError):
        raise rejected(ErrorCode.INVALID_CURSOR, "the cursor cannot be read") from None
    if (
        bound != fingerprint
        or [type(value) for value in position] != list(types)
        or any(isinstance(value, int) and abs(value) > MAX_INTEGER for value in position)
    ):
        raise rejected(ErrorCode.INVALID_CURSOR, "the cursor belongs to other filters")
    return position
