"""Values of every shape for property tests, and what each is in a line."""

import base64
import math
import uuid
from collections import OrderedDict, UserDict, deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

#: The same examples in every run: a failure is found by the change that made it.
examples = settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Color(Enum):
    RED = "red"
    WEIGHT = 0.5
    NOTHING = math.nan


class Level(IntEnum):
    HIGH = 3


class Recorded:
    """An object with ``to_record()``."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def to_record(self) -> Any:
        return self.value


class Hostile:
    """One that fails, with a message that is long and no valid text."""

    def to_record(self) -> Any:
        raise OSError("gone: \udcff" + "x" * 10_000)


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no message")


class Mute:
    def to_record(self) -> Any:
        raise SpeechlessError


#: Lone surrogates, controls and line separators included.
texts = st.text(st.characters(exclude_categories=())) | st.sampled_from(
    ["\ud800", "\udfff\ud83e\uddea", "a\u2028b\x85c\0d\x1b\ufeff\n", "", "traces", "id", "run"]
)
integers = st.integers() | st.integers(2**62, 2**70) | st.sampled_from([10**300, -(2**63) - 1])
floats = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1e308])
scalars = (
    st.none()
    | st.booleans()
    | integers
    | floats
    | texts
    | st.binary()
    | st.decimals()
    | st.fractions()
    | st.datetimes()
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.sampled_from([*Color, *Level])
    | st.builds(np.float32, st.floats(width=32))
    | st.builds(np.float64, floats)
    | st.builds(np.int64, st.integers(-(2**63), 2**63 - 1))
    | st.builds(np.bool_, st.booleans())
    | st.builds(np.array, st.lists(st.lists(floats, min_size=2, max_size=2)))
    | st.sets(st.integers() | st.text())
)
keys = (
    texts
    | st.integers()
    | floats
    | st.none()
    | st.booleans()
    | st.binary()
    | st.tuples(st.integers(), st.text())
    | st.dates()
    | st.uuids()
    | st.sampled_from([*Color, *Level])
)
#: What has no form in JSON.
hopeless = st.sampled_from([object(), 1j, len, Hostile(), Mute(), 10**4001, Decimal("1e999999")])


def nested(leaves: Any, *, max_leaves: int = 20) -> Any:
    def containers(inner: Any) -> Any:
        return (
            st.lists(inner)
            | st.dictionaries(keys, inner)
            | st.dictionaries(st.text(), inner).map(UserDict)
            | st.dictionaries(st.text(), inner).map(OrderedDict)
            | st.lists(inner).map(tuple)
            | st.lists(inner).map(deque)
            | st.dictionaries(keys, inner).map(Recorded)
        )

    return st.recursive(leaves, containers, max_leaves=max_leaves)


def is_as_documented(actual: Any, value: Any) -> bool:  # noqa: PLR0911 - one line for each kind
    """Whether ``actual``, of a parsed line, is what the docstring of ``encoding`` promises."""
    if isinstance(value, Recorded):
        value = value.value
    if isinstance(value, (dict, UserDict)):
        return (
            isinstance(actual, dict)
            and len(actual) == len(value)
            and all(isinstance(key, str) for key in actual)
            and all(map(is_as_documented, actual.values(), value.values()))
        )
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple, deque)):
        return (
            isinstance(actual, list)
            and len(actual) == len(value)
            and all(map(is_as_documented, actual, value))
        )
    if isinstance(value, set):
        return isinstance(actual, list) and len(actual) == len(value)
    if isinstance(value, np.float32) and np.isfinite(value):
        # Its shortest text is another double than itself, by much where it is subnormal.
        return isinstance(actual, (int, float)) and np.float32(actual) == value
    expected = _scalar(value)
    if isinstance(expected, bool) or expected is None:
        return actual is expected
    if isinstance(expected, float):
        return isinstance(actual, (int, float)) and (
            actual == expected or math.isclose(actual, expected, rel_tol=1e-6)
        )
    return type(actual) is type(expected) and actual == expected


def _scalar(value: Any) -> Any:  # noqa: C901, PLR0911 - one line for each row of the table
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (Decimal, Fraction)):
        if isinstance(value, Decimal) and not value.is_finite():
            return None
        exact = value == int(value) and not (isinstance(value, Decimal) and _has_places(value))
        return int(value) if exact else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def _has_places(value: Decimal) -> bool:
    exponent = value.as_tuple().exponent
    return isinstance(exponent, int) and exponent < 0
