"""Every record becomes one strict line, or says where it cannot."""

import json
import math
import uuid
from collections import OrderedDict, UserDict, deque, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from pathlib import Path

import numpy as np
import orjson
import pytest
from pydantic import BaseModel, SecretStr

from prefect_prime.encoding import MAX_DEPTH, clean_text, decode, encode, number
from prefect_prime.errors import RecordRejectedError


def refuse(name):
    raise AssertionError(f"{name} is not JSON")


def decoded(value):
    """What ``value`` is after one strict line of its own."""
    line = encode({"before": "b", "value": value, "after": "a"})
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    record = json.loads(line, parse_constant=refuse)
    assert (record.pop("before"), record.pop("after")) == ("b", "a")
    assert decode(line)["value"] == record["value"]
    return record["value"]


class Color(Enum):
    RED = "red"
    PRICE = Decimal("1.10")
    PAIR = (1, 2)


class Level(IntEnum):
    HIGH = 3


class Name(StrEnum):
    A = "a"


@dataclass
class Point:
    x: float
    members: set
    _hidden: object = None


@dataclass
class Recorded:
    name: str

    def to_record(self):
        return {"recorded": self.name}


class Own:
    def to_record(self):
        return {"own": math.nan}


class Model(BaseModel):
    price: Decimal
    at: datetime


class Loose(BaseModel):
    anything: object


Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - the tuple is what is tried

INSTANT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([math.nan, [[math.inf, {"x": -math.inf}]]], [None, [[None, {"x": None}]]]),
        (np.float32(0.5), 0.5),
        (np.float32(0.1), 0.1),
        (np.float64("nan"), None),
        (np.float16(0.5), 0.5),
        (np.longdouble(1.5), 1.5),
        (np.int64(-7), -7),
        (np.bool_(1), True),
        (np.str_("s"), "s"),
        (np.datetime64("2026-01-02"), "2026-01-02T00:00:00"),
        (np.datetime64("NaT", "s"), None),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.arange(6, dtype="float32").reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
        (np.array([0.1, np.nan, 7], dtype="float32")[::2], [0.1, 7]),
        (np.array([1.5], dtype=">f8"), [1.5]),
        (np.array([1, "a", None, {2: 3}], dtype=object), [1, "a", None, {"2": 3}]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array(3), 3),
        (Decimal("1.10"), 1.1),
        (Decimal(5), 5),
        (Decimal("NaN"), None),
        (Decimal("-Infinity"), None),
        (Decimal("1E+30"), 10**30),
        (Fraction(1, 4), 0.25),
        (Fraction(10**400, 1), 10**400),
        (np.timedelta64(1500, "ms"), 1.5),
        (np.array([1, 2], dtype="timedelta64[h]"), [3600.0, 7200.0]),
        (np.timedelta64("NaT", "s"), None),
        (10**4000 - 1, 10**4000 - 1),
        (Recorded({3: "\ud800"}), {"recorded": {"3": "\ufffd"}}),
        (INSTANT, "2026-01-02T03:04:05+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4, tzinfo=UTC), "03:04:00+00:00"),
        (time(0, 0, 0, 10_000), "00:00:00.010000"),
        (timedelta(seconds=1.5), 1.5),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Path("some") / "file", "some/file"),
        ([Color.RED, Color.PRICE, Color.PAIR, Level.HIGH, Name.A], ["red", 1.1, [1, 2], 3, "a"]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ((1, (2,)), [1, [2]]),
        (Pair(1, "r"), [1, "r"]),
        (deque([1]), [1]),
        (range(2), [0, 1]),
        ({"k": 1}.keys(), ["k"]),
        ({"k": 1}.values(), [1]),
        (UserDict({"a": UserDict({1: 2})}), {"a": {"1": 2}}),
        (OrderedDict(a=1), {"a": 1}),
        ("naïve".encode(), "naïve"),
        (b"\xff\x00", "/wA="),
        (bytearray(b"x"), "x"),
        (memoryview(b"x"), "x"),
        (Point(x=math.nan, members={1}, _hidden=object()), {"x": None, "members": [1]}),
        (Recorded("r"), {"recorded": "r"}),
        (Model(price=Decimal("1.10"), at=INSTANT), {"price": "1.10", "at": "2026-01-02T03:04:05Z"}),
        (Loose(anything=Own()), {"anything": {"own": None}}),
        (Loose(anything=SecretStr("hidden")), {"anything": "**********"}),
        (2**64, 2**64),
        (-(2**63) - 1, -(2**63) - 1),
        ([-(2**63) - 1, 10**300], [-(2**63) - 1, 10**300]),
        ("a\ud800b", "a\ufffdb"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud83e\uddea", "🧪"),
        ({"k\udfff": ["\ud800"]}, {"k\ufffd": ["\ufffd"]}),
        ("a\u2028b\u2029c\x85d\0e\x1b[31m\ufeff\n\r", "a\u2028b\u2029c\x85d\0e\x1b[31m\ufeff\n\r"),
    ],
)
def test_a_value_becomes_its_natural_json(value, expected):
    actual = decoded(value)

    assert actual == expected
    assert type(actual) is type(expected) or isinstance(expected, (int, float))


def test_the_slow_way_gives_the_same_values_as_the_fast_one():
    value = [np.float32(0.1), np.array([0.1], dtype="float32"), Decimal("1.10"), math.nan, INSTANT]
    value += [Level.HIGH, Point(x=1.0, members={2}), True, None, -0.0, 1e16, np.bool_(0)]

    assert decoded([value, "\ud800"])[0] == decoded(value)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (1, "1"),
        (np.int64(2), "2"),
        (True, "true"),
        (None, "null"),
        (1.5, "1.5"),
        (math.nan, "null"),
        (2**70, str(2**70)),
        (Decimal("1.10"), "1.1"),
        ((1, "a"), "1,a"),
        (b"key", "key"),
        (Name.A, "a"),
        (Level.HIGH, "3"),
        (Color.RED, "red"),
        (date(2026, 1, 2), "2026-01-02"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Path("p"), "p"),
        (np.str_("n"), "n"),
    ],
)
def test_a_key_becomes_text(key, text):
    assert decoded({key: "v"}) == {text: "v"}


def test_keys_that_become_the_same_text_are_all_kept():
    assert decoded({1: "int", "1": "text", "2": "two"}) == {"1 (2)": "int", "1": "text", "2": "two"}
    assert decoded(dict.fromkeys(["\ud800", "\udfff"], 1)) == {"\ufffd": 1, "\ufffd (2)": 1}


def nested(depth, wrap=lambda value: [value], value="leaf"):
    for _ in range(depth):
        value = wrap(value)
    return value


def test_a_record_may_be_so_deep_that_its_row_can_still_be_written():
    record = {"value": nested(MAX_DEPTH - 1)}
    request = {"samples": [{"info": {"native_wrapper": record}}]}

    assert decode(encode(record)) == record
    assert orjson.dumps(request)
    with pytest.raises(TypeError, match="Recursion limit"):
        orjson.dumps([request])


DEEPER = {
    "lists": nested(MAX_DEPTH),
    "very deep": nested(10_000),
    "objects": nested(MAX_DEPTH, lambda value: {"k": value}),
    "mappings": nested(MAX_DEPTH, lambda value: UserDict(k=value)),
    # orjson writes these at any depth, over the end of its own buffer.
    "tuples": nested(MAX_DEPTH, lambda value: (value,)),
    "very deep tuples": nested(200_000, lambda value: (value,)),
    "pairs": nested(MAX_DEPTH, lambda value: ("head", value)),
    "tuples in an object": Recorded(nested(50_000, lambda value: (value,))),
}


@pytest.mark.parametrize("value", DEEPER.values(), ids=DEEPER)
def test_what_is_deeper_is_rejected_with_its_place(value):
    with pytest.raises(RecordRejectedError, match=r"^value.* holds values nested deeper than 250"):
        encode({"value": value})


def test_objects_on_the_way_to_json_are_no_levels():
    value = Recorded(Recorded(Loose(anything=Own())))

    assert decoded(nested(MAX_DEPTH - 5, lambda inner: [inner], value))


def test_a_record_that_contains_itself_is_rejected_with_the_place():
    info = {"a": [1]}
    info["a"].append(info)

    with pytest.raises(RecordRejectedError, match=r"^info\.a\[1\] holds dict that contains itself"):
        encode({"info": info})


def test_a_value_that_is_there_twice_is_not_circular():
    shared = {"k": "\ud800"}

    assert decoded([shared, shared]) == [{"k": "\ufffd"}] * 2


class Broken:
    def to_record(self):
        raise OSError("disk gone")


class Endless:
    def to_record(self):
        return Endless()


class Itself:
    def to_record(self):
        return self


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), r"holds object, which has no JSON form"),
        (len, r"holds builtin_function_or_method, which"),
        (Recorded, r"holds type, which"),
        ((n for n in "a"), r"holds generator, which"),
        (1j, r"holds complex, which"),
        (np.complex128(1), r"holds complex, which"),
        ({object(): 1}, r"holds object, which"),
        ({Point: 1}, r"holds type, which"),
        (Broken(), r"Broken that failed to convert \(OSError: disk gone\)"),
        (Endless(), r"becomes one object after the other"),
        (Itself(), r"contains itself"),
        pytest.param(10**5000, r"an integer of more than 4000 digits", id="huge"),
        (Decimal("1E+999999999"), r"a Decimal beyond the range"),
    ],
)
def test_what_has_no_json_form_is_rejected_with_its_place_and_type(value, reason):
    with pytest.raises(RecordRejectedError, match=rf"^traces\[0\]\.info\['the o'\] .*{reason}"):
        encode({"traces": [{"info": {"the o": value}}]})


class Interrupted:
    def to_record(self):
        raise KeyboardInterrupt


def test_an_interrupt_while_encoding_is_no_rejection():
    with pytest.raises(KeyboardInterrupt):
        encode({"value": Interrupted()})


def test_only_a_mapping_is_a_record():
    with pytest.raises(RecordRejectedError, match="a record is a mapping, not list"):
        encode([])


def test_encoding_changes_nothing_in_its_input():
    inner = {1: "\ud800"}
    record = {"info": inner, "s": (1, inner)}

    encode(record)

    assert record == {"info": {1: "\ud800"}, "s": (1, inner)}


@pytest.mark.parametrize(
    "line", [b"[NaN]", b"[Infinity, 123456789012345678901234567890]", b"{", b""]
)
def test_decoding_refuses_what_is_not_strict_json(line):
    with pytest.raises(ValueError, match=r".+"):
        decode(line)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (True, 1.0),
        (np.float32(0.1), 0.1),
        (np.bool_(1), 1.0),
        (np.array(2), 2.0),
        (Decimal("0.5"), 0.5),
        (math.nan, None),
        (np.float64("inf"), None),
        (10**400, None),
        ("1", None),
        (np.str_("1"), None),
        (None, None),
        ([1], None),
        (INSTANT, None),
        (object(), None),
    ],
)
def test_a_number_is_what_json_shows_as_one(value, expected):
    assert number(value) == expected


def test_clean_text_keeps_text_that_is_valid():
    assert clean_text("naïve \0 🧪") == "naïve \0 🧪"
