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
over ``MAX_DEPTH``, an integer of more than ``MAX_INTEGER_DIGITS`` digits.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import orjson

from prefect_prime.errors import RecordRejectedError
from prefect_prime.natural import (
    MAX_INTEGER_DIGITS,
    OPTIONS,
    UnsupportedError,
    clean_text,
    natural,
    text_keys,
    type_name,
)

__all__ = ["MAX_DEPTH", "MAX_INTEGER_DIGITS", "clean_text", "decode", "dumps", "encode", "number"]

#: Levels of nesting in a line: half of what ``json.loads`` (1000) and ``orjson.loads``
#: (1024) can read back, so that a line still reads after it was wrapped into a row.
MAX_DEPTH = 500

_MAX_INTEGER_BITS = int(MAX_INTEGER_DIGITS * math.log2(10))

#: orjson reads an integer over 64 bit as a float; 20 digits is where those begin. Looked
#: for in a line whose digits are all zeros: ten times as fast as a regular expression.
_LONG_DIGITS = b"0" * 20
_TO_ZEROS = bytes.maketrans(b"123456789", b"000000000")

_SCALARS = (type(None), bool, int, float, str)

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
        return orjson.dumps(value, default=natural, option=OPTIONS | orjson.OPT_APPEND_NEWLINE)
    except TypeError as exc:
        # orjson turns even an interrupt inside an object's method into a TypeError; else
        # the slow way either succeeds or says where and why.
        if exc.__cause__ is not None and not isinstance(exc.__cause__, Exception):
            raise exc.__cause__ from None
    try:
        return dumps(_plain(value, None, set())) + b"\n"
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
    if _LONG_DIGITS in line.translate(_TO_ZEROS):
        return json.loads(line, parse_constant=_refuse_constant)
    return orjson.loads(line)


def number(value: Any) -> float | None:
    """``value`` as a finite float, as its JSON shows it; None for everything else.

    Bools, numpy numbers and ``Decimal`` are numbers. Text is not.
    """
    try:
        if not isinstance(value, (int, float)):
            value = orjson.loads(orjson.dumps(value, default=natural, option=OPTIONS))
        result = float(value) if isinstance(value, (int, float)) else math.nan
    except (TypeError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def _plain(value: Any, path: _Path, active: set[int]) -> Any:
    """``value`` in dicts with clean text keys, lists and JSON scalars alone.

    One frame per level, so that MAX_DEPTH fits into the interpreter's stack.
    """
    if isinstance(value, _SCALARS):
        return _scalar(value, path)
    if id(value) in active:
        _reject(path, f"{type_name(value)} that contains itself")
    if len(active) >= MAX_DEPTH:
        _reject(path, f"values nested deeper than {MAX_DEPTH} levels")
    active.add(id(value))
    shallow = _shallow(value, path)
    result: Any
    if isinstance(shallow, dict):
        result = {}
        for key, item in shallow.items():
            result[key] = _plain(item, (path, key), active)
    elif isinstance(shallow, (list, tuple)):
        result = []
        for index, item in enumerate(shallow):
            result.append(_plain(item, (path, index), active))
    else:
        result = _plain(shallow, path, active)
    active.discard(id(value))
    return result


def _scalar(value: float | str | None, path: _Path) -> float | str | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value.bit_length() > _MAX_INTEGER_BITS:
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
        return _reject(path, f"{type_name(value)} that failed to convert ({type_name(exc)}: {exc})")


def _reject(path: _Path, what: str) -> NoReturn:
    raise RecordRejectedError(f"{_place(path)} holds {what}; convert or remove it before logging")


def _place(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, key = path
        if isinstance(key, str) and key.isidentifier():
            parts.append(f".{key}")
        else:
            parts.append(f"[{key!r}]")
    return "".join(reversed(parts)).removeprefix(".") or "the record"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
