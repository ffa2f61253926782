"""The natural JSON of a Python value, one step at a time.

:func:`natural` and :func:`text_keys` make a value simpler without looking at its
members, so that orjson's ``default`` hook and the slow path of
``prefect_prime.encoding`` agree on every form; that module's docstring lists them.
Both raise :class:`UnsupportedError` for what has no form, and whatever an object's own
methods raise.
"""

import base64
import dataclasses
import datetime as dt
import math
import numbers
import os
from collections.abc import Callable, Mapping, MappingView, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from enum import Enum
from reprlib import Repr
from typing import Any

import orjson

__all__ = [
    "MAX_INTEGER_DIGITS",
    "OPTIONS",
    "UnsupportedError",
    "clean_text",
    "described",
    "natural",
    "shown",
    "text_keys",
    "type_name",
]

#: Below the 4300 digits that CPython reads and writes (``sys.int_info``).
MAX_INTEGER_DIGITS = 4000

#: Characters of a text, and of an exception's message, in a reason.
_LONGEST_TEXT = 100
_LONGEST_MESSAGE = 500
_SHOWN = Repr()
_SHOWN.maxstring = _SHOWN.maxother = _LONGEST_TEXT

#: Dataclasses go through ``natural``, where ``to_record()`` takes precedence; times, because
#: orjson writes 00:00:00.010000 as 00:00:00.10000.
OPTIONS = (
    orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
)


class UnsupportedError(TypeError):
    """A value has no JSON form; the message says what it is."""


def natural(value: Any) -> Any:
    """The form of ``value`` that is one step nearer to JSON; its members are as they were.

    Raises UnsupportedError where there is none.
    """
    if not isinstance(value, type):
        for kinds, convert in _CONVERSIONS:
            if isinstance(value, kinds):
                return convert(value)
        for method, convert in _METHODS:
            if callable(getattr(value, method, None)):
                return convert(value)
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            return {name: getattr(value, name) for name in names if not name.startswith("_")}
    raise UnsupportedError(f"{type_name(value)}, which has no JSON form")


def text_keys(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """``mapping`` under clean text keys, with every item kept; its items are as they were."""
    texts = {key: _key_text(key) for key in mapping}
    taken = {text for key, text in texts.items() if type(key) is str and key == text}
    result: dict[str, Any] = {}
    for key, item in mapping.items():
        text = texts[key]
        if not (type(key) is str and key == text):
            text = _free(text, taken)
            taken.add(text)
        result[text] = item
    return result


def clean_text(text: str) -> str:
    """``text`` with each lone surrogate replaced by U+FFFD and surrogate pairs joined."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return str.__str__(text)


def shown(value: Any) -> str:
    """``value`` as a reason shows it: on one line, escaped, and cut if it is long."""
    try:
        return _SHOWN.repr(value)
    except Exception:  # noqa: BLE001 - a reason is to be had for any value
        return f"<{type_name(value)}>"


def described(exc: BaseException) -> str:
    """The type and the message of an exception that somebody else's code raised."""
    try:
        message = clean_text(str(exc))
    except Exception:  # noqa: BLE001 - as above
        message = "its message cannot be shown"
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[:_LONGEST_MESSAGE]}…"
    return f"{type_name(exc)}: {message}"


def type_name(value: Any) -> str:
    """The type of ``value`` as a message names it, with its module."""
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


def _decimal_number(value: Decimal) -> float | int | None:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):  # NaN and the infinities have letters here
        return None
    if exponent >= 0 and value.adjusted() < MAX_INTEGER_DIGITS:
        return int(value)
    result = float(value)
    if math.isinf(result):
        raise UnsupportedError("a Decimal beyond the range of JSON numbers")
    return result


def _integer(value: Any) -> Any:
    if getattr(getattr(value, "dtype", None), "kind", "i") == "m":
        return _durations(value)
    return int(value)


def _durations(value: Any) -> Any:
    """Numpy's durations, an integer type there, as Python's own: they have a unit."""
    return value.astype("timedelta64[us]").tolist()


def _fraction(value: Any) -> float | int:
    return int(value) if value.denominator == 1 else float(value)


def _bytes_text(value: Any) -> str:
    data = bytes(value)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode("ascii")


def _path_text(value: Any) -> str:
    path = os.fspath(value)
    return _bytes_text(path) if isinstance(path, bytes) else path


def _sorted_set(value: Any) -> list[Any]:
    """A set's members in an order that does not depend on the process's hash seed."""
    members = list(value)
    for kinds in (str, (int, float)):
        if all(isinstance(member, kinds) for member in members):
            return sorted(members)
    return sorted(members, key=lambda member: (type(member).__name__, repr(member)))


def _array(value: Any) -> Any:
    """Members of an array that orjson does not take as it lies in memory."""
    if value.dtype.kind == "m":
        return _durations(value)
    flags = getattr(value, "flags", None)
    if getattr(flags, "c_contiguous", True) or value.dtype.kind not in "biuf":
        return value.tolist()
    # orjson writes float32 shortest; tolist() would widen it first.
    return value.copy(order="C")


def _model(value: Any) -> Any:
    """A pydantic model as it serialises itself, else its fields as they are."""
    try:
        return value.model_dump(mode="json", warnings=False)
    except Exception:  # noqa: BLE001 - pydantic's JSON mode refuses much that we can write
        return value.model_dump(mode="python", warnings=False)


#: Members of a numpy hierarchy register with ``numbers``, so arrays come by method alone.
_CONVERSIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Enum, lambda value: value.value),
    (Decimal, _decimal_number),
    (numbers.Integral, _integer),
    (numbers.Rational, _fraction),
    (numbers.Real, float),
    ((bytes, bytearray, memoryview), _bytes_text),
    ((dt.date, dt.time), lambda value: value.isoformat()),
    (dt.timedelta, lambda value: value.total_seconds()),
    (os.PathLike, _path_text),
    (Mapping, dict),
    (AbstractSet, _sorted_set),
    ((Sequence, MappingView), list),
)

_METHODS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("to_record", lambda value: value.to_record()),
    ("model_dump", _model),
    ("tolist", _array),
)


def _free(text: str, taken: set[str]) -> str:
    candidate, count = text, 1
    while candidate in taken:
        count += 1
        candidate = f"{text} ({count})"
    return candidate


def _key_text(key: Any) -> str:
    if isinstance(key, str):
        return clean_text(key)
    if isinstance(key, (tuple, frozenset)):
        return ",".join(map(_key_text, natural(key)))
    try:
        [text] = orjson.loads(orjson.dumps({key: 0}, option=OPTIONS | orjson.OPT_NON_STR_KEYS))
    except TypeError:
        if isinstance(key, numbers.Integral):
            return str(int(key))
        simpler = natural(key)
        if isinstance(simpler, (dict, list)):
            raise UnsupportedError(f"a key of type {type_name(key)}") from None
        return _key_text(simpler)
    return str(text)
