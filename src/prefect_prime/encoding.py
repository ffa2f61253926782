r"""One record becomes one line of strict JSON, or a reason why it cannot.

:func:`encode` is total: whatever a producer put into a record, the answer is a valid
UTF-8 line that ends in ``\n`` and holds no other ``\n``, or a
``RecordRejectedError`` that names the place inside the record. It never raises
anything else and never changes its input.

What becomes what, in values:

- NaN and the infinities, in floats, numpy and ``Decimal``: ``null``
- numpy scalars and arrays (any layout or dtype), tensors with ``tolist()``: numbers, lists
- ``Decimal`` and ``Fraction``: a number (an exact integer where it is integral)
- ``datetime``, ``date``, ``time``: ISO 8601 text; ``timedelta``: seconds
- ``UUID``, paths: text; ``bytes``: its text if it is UTF-8, else its base64 text
- enums: their value; tuples, sets, sequences: a list (a set in a stable order)
- objects with ``to_record()``, pydantic models, dataclasses, mappings: an object
- integers over 64 bit: exact integers; a lone surrogate: U+FFFD (a pair is joined)

Keys become text: a number as JSON writes it, None as ``null``, a tuple as its parts
joined by commas (as pydantic does). Where two keys become the same text, both are kept:
a key that was that text already keeps it, the other gets `` (2)``, `` (3)``, … appended.

Rejected: a value that contains itself, an object with none of these forms, nesting
over ``MAX_DEPTH``, an integer of more than ``MAX_INTEGER_DIGITS`` digits. The reason is
clean text of bounded length, whatever the record and its objects have in theirs.
"""

import json
import math
from collections.abc import Mapping
from gc import get_referents
from typing import Any, NoReturn

import orjson

from prefect_prime.errors import RecordRejectedError
from prefect_prime.natural import (
    MAX_INTEGER_DIGITS,
    OPTIONS,
    UnsupportedError,
    clean_text,
    described,
    natural,
    shown,
    text_keys,
    type_name,
)

__all__ = [
    "MAX_DEPTH",
    "MAX_INTEGER_DIGITS",
    "as_read",
    "clean_text",
    "decode",
    "dumps",
    "encode",
    "number",
]

#: Levels that orjson and pydantic write (tried: both stop at 255). Readers take more, but
#: one that stores a record or shows it again, as the embedded platform does, has to write.
_WRITABLE_DEPTH = 254
#: Levels around a record where it lies deepest: the samples request, its list, the row and
#: the ``info`` that holds its ``native_wrapper``.
_WRAPPING = 4
#: Levels of nesting in a line, its own object included: what both sinks can take, so that
#: they agree.
MAX_DEPTH = _WRITABLE_DEPTH - _WRAPPING

_BEYOND_INTEGERS = 10**MAX_INTEGER_DIGITS
#: Objects without JSON form may give another such object, without end.
_MAX_CONVERSIONS = 50

#: orjson reads an integer over 64 bit as a float; 20 digits is where those begin, 19 below
#: zero. Looked for in a line whose digits are all zeros: ten times as fast as a regular
#: expression.
_LONG_DIGITS = b"0" * 20
_LONG_NEGATIVE = b"-" + b"0" * 19
_TO_ZEROS = bytes.maketrans(b"123456789", b"000000000")

#: Characters of a key, and parts of a place, that a reason shows as they are.
_LONGEST_NAME = 40
_LONGEST_PLACE = 20

_SCALARS = (type(None), bool, int, float, str)

#: A record in whose first levels the garbage collector finds an end is not deep.
_FLAT_LEVELS = 32
_FLAT_MEMBERS = 4096
_CONTAINERS = frozenset({dict, list, tuple})
_NUMBERS = frozenset({int, float})

#: A place in a record: the place of its container, and its key or index there.
_Path = tuple["_Path", str | int] | None


def encode(value: Mapping[Any, Any]) -> bytes:
    r"""``value`` as one line of strict JSON, with its final ``\n``.

    Raises RecordRejectedError: the message names the place inside the record, like
    ``traces[0].info.o``, and the type found there.
    """
    if not isinstance(value, Mapping):
        raise RecordRejectedError(f"a record is a mapping, not {type_name(value)}")
    try:
        # Inside as many lists as will wrap it later, so that orjson's own limit is ours.
        wrapped = orjson.dumps([[[[_bounded(value)]]]], default=_simpler, option=OPTIONS)
        return b"".join((memoryview(wrapped)[_WRAPPING:-_WRAPPING], b"\n"))
    except TypeError as exc:
        # orjson turns even an interrupt inside an object's method into a TypeError; else
        # the slow way either succeeds or says where and why.
        if exc.__cause__ is not None and not isinstance(exc.__cause__, Exception):
            raise exc.__cause__ from None
    try:
        return dumps(_plain(value, None, set(), 1)) + b"\n"
    except RecursionError:
        raise RecordRejectedError("the record is nested too deeply for this call stack") from None


def dumps(value: Any) -> bytes:
    """The compact JSON of ``value``, which is JSON already: a decoded line, or rows of such.

    No final newline. Integers of any size stay exact.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()


def decode(line: bytes) -> Any:
    """The value of one JSON line; integers of any size stay exact.

    Raises ValueError for anything that is not strict JSON.
    """
    zeros = line.translate(_TO_ZEROS)
    if _LONG_DIGITS in zeros or _LONG_NEGATIVE in zeros:
        return json.loads(line, parse_constant=_refuse_constant)
    return orjson.loads(line)


def as_read(value: Any) -> Any:
    """What ``value``, a part of a record that :func:`encode` took, is in its decoded line."""
    try:
        return orjson.loads(orjson.dumps(value, default=natural, option=OPTIONS))
    except TypeError:
        return decode(encode({"value": value}))["value"]


def number(value: Any) -> float | None:
    """``value`` as a finite float, as its JSON shows it; None for everything else.

    Bools, numpy numbers and ``Decimal`` are numbers. Text is not.
    """
    if type(value) is float:
        return value if math.isfinite(value) else None
    try:
        if not isinstance(value, (int, float)):
            value = orjson.loads(orjson.dumps(value, default=natural, option=OPTIONS))
        result = float(value) if isinstance(value, (int, float)) else math.nan
    except (TypeError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def _simpler(value: Any) -> Any:
    return _bounded(natural(value))


def _bounded(value: Any) -> Any:
    """``value``, if orjson may have it: it writes tuples at any depth, past its own buffer.

    Raises TypeError, as orjson does for what is nested too deeply.
    """
    members = [value]
    for _ in range(_FLAT_LEVELS):
        members = get_referents(*members)  # as fast as orjson itself
        if not members:
            return value
        if len(members) > _FLAT_MEMBERS:  # large; or there are objects, with all their classes
            break
    if type(value) in _CONTAINERS and value and _is_deeper(value, MAX_DEPTH):
        raise TypeError("nested too deeply")
    return value


def _is_deeper(container: Any, levels: int) -> bool:
    if type(container) is dict:
        container = container.values()
    elif type(container[0]) in _NUMBERS and type(container[-1]) in _NUMBERS:
        return False  # token ids and their like, by the hundred thousand
    if not levels:
        return True
    for item in container:
        if type(item) in _CONTAINERS and item and _is_deeper(item, levels - 1):
            return True
    return False


def _plain(value: Any, path: _Path, active: set[int], level: int) -> Any:
    """``value`` in dicts with clean text keys, lists and JSON scalars alone.

    ``level`` is its own if it becomes a container; what it is converted from is no level.
    One frame per level, so that MAX_DEPTH fits into the interpreter's stack.
    """
    steps: list[Any] = []  # alive until the end: an id is an object's own only so long
    while not isinstance(value, _SCALARS):
        if id(value) in active:
            _reject(path, f"{type_name(value)} that contains itself")
        if len(steps) > _MAX_CONVERSIONS:
            _reject(path, f"{type_name(value)} that becomes one object after the other")
        active.add(id(value))
        steps.append(value)
        simpler = _shallow(value, path)
        if isinstance(value, (Mapping, list, tuple)):
            if level > MAX_DEPTH:
                _reject(path, f"values nested deeper than {MAX_DEPTH} levels")
            break
        value = simpler
    else:
        simpler = _scalar(value, path)
    result: Any = simpler
    if isinstance(simpler, dict):
        result = {}
        for key, item in simpler.items():
            result[key] = _plain(item, (path, key), active, level + 1)
    elif isinstance(simpler, (list, tuple)):
        result = []
        for index, item in enumerate(simpler):
            result.append(_plain(item, (path, index), active, level + 1))
    active.difference_update(map(id, steps))
    return result


def _scalar(value: float | str | None, path: _Path) -> float | str | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if abs(value) >= _BEYOND_INTEGERS:
        _reject(path, f"an integer of more than {MAX_INTEGER_DIGITS} digits")
    return int(value)


def _shallow(value: Any, path: _Path) -> Any:
    """``value`` made simpler by one step: its members are as they were."""
    try:
        if isinstance(value, Mapping):
            return text_keys(value)
        if isinstance(value, (list, tuple)):
            return value
        try:
            return orjson.loads(orjson.dumps(value, option=OPTIONS))
        except TypeError:
            return natural(value)
    except RecursionError:
        raise
    except UnsupportedError as exc:
        return _reject(path, str(exc))
    except Exception as exc:  # noqa: BLE001 - it comes from the object's own methods
        return _reject(path, f"{type_name(value)} that failed to convert ({described(exc)})")


def _reject(path: _Path, what: str) -> NoReturn:
    raise RecordRejectedError(f"{_place(path)} holds {what}; convert or remove it before logging")


def _place(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, key = path
        if isinstance(key, str) and key.isidentifier() and len(key) <= _LONGEST_NAME:
            parts.append(f".{key}")
        else:
            parts.append(f"[{shown(key)}]")
    if len(parts) > _LONGEST_PLACE:
        parts[_LONGEST_PLACE // 2 : -_LONGEST_PLACE // 2] = ["…"]
    return "".join(reversed(parts)).removeprefix(".") or "the record"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
