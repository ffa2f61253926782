"""Whatever is in a record: one strict line that reads back as documented, or one reason."""

import json

import pytest
from any_values import Recorded, examples, hopeless, is_as_documented, keys, nested, scalars, texts
from hypothesis import given
from hypothesis import strategies as st

from prefect_prime.encoding import MAX_DEPTH, decode, encode
from prefect_prime.errors import RecordRejectedError
from prefect_prime.metrics import SummaryAccumulator
from prefect_prime.projection import example_id
from prefect_prime.records import kind_of, origin_of, outline, record_id, stamp, to_mapping


def refuse(name):
    raise AssertionError(f"{name} is not JSON")


def strict(line):
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return json.loads(line, parse_constant=refuse)


def attempt(make, *arguments):
    """The result, or else the reason why there is none."""
    try:
        return make(*arguments), None
    except RecordRejectedError as error:
        return None, str(error)


def is_readable(reason):
    return bool(reason.encode()) and len(reason) < 2000 and "\n" not in reason


@examples
@given(nested(scalars))
def test_what_has_a_json_form_is_one_strict_line_of_it(value):
    line = encode({"before": 1, "value": value, "after": 2})

    record = strict(line)
    assert list(record) == ["before", "value", "after"]
    assert is_as_documented(record["value"], value)
    assert decode(line) == record


@examples
@given(nested(scalars | hopeless), nested(scalars))
def test_anything_else_is_one_reason_and_no_other_error(value, neighbour):
    line, reason = attempt(encode, {"info": {"value": value, "neighbour": neighbour}})

    if reason is None:
        assert is_as_documented(strict(line)["info"]["value"], value)
    else:
        assert is_readable(reason)
        assert reason.startswith("info.value")


@examples
@given(nested(scalars), st.integers(0, 5), st.booleans())
def test_a_cycle_is_one_reason_wherever_it_closes(value, levels, as_mapping):
    knot = {"value": value} if as_mapping else [value]
    inner = knot
    for _ in range(levels):
        inner = [inner, Recorded({"k": inner})]
    if as_mapping:
        knot["again"] = inner
    else:
        knot.append(inner)

    with pytest.raises(RecordRejectedError, match="contains itself") as caught:
        encode({"info": knot})
    assert is_readable(str(caught.value))


@examples
@given(
    st.lists(
        st.sampled_from([list, tuple, dict]).map(
            lambda kind: (lambda v: {"k": v}) if kind is dict else (lambda v, k=kind: k(["x", v]))
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(MAX_DEPTH - 12, MAX_DEPTH + 12),
)
def test_the_limit_of_nesting_is_exact_whatever_is_nested(wraps, depth):
    value = 1
    for level in range(depth - 1):
        value = wraps[level % len(wraps)](value)

    line, reason = attempt(encode, {"value": value})

    if depth <= MAX_DEPTH:
        assert strict(line)
    else:
        assert f"nested deeper than {MAX_DEPTH}" in reason


@examples
@given(st.dictionaries(keys, nested(scalars | hopeless, max_leaves=5)) | nested(scalars))
def test_whatever_is_logged_becomes_a_stamped_record_or_one_reason(record):
    def log():
        mapping = to_mapping(record)
        kind = kind_of(mapping)
        identity = record_id(mapping, kind)
        origin_of(mapping)
        return kind, identity, encode(mapping if kind == "sample" else stamp(mapping, "run"))

    logged, reason = attempt(log)

    if reason is None:
        kind, identity, line = logged
        assert kind_of(strict(line)) == kind
        assert str(strict(line)["sample_id" if kind == "sample" else "id"]) == identity
    else:
        assert is_readable(reason)


@examples
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "id": texts | st.uuids(),
                "agent": st.fixed_dictionaries({}, optional={"trainable": scalars})
                | st.builds(lambda value: Recorded({"trainable": value}), st.booleans()),
                "task": st.builds(lambda idx: {"data": {"idx": idx}}, scalars)
                | st.builds(lambda idx: Recorded({"data": Recorded({"id": idx})}), scalars),
                "rewards": st.dictionaries(
                    keys, st.builds(lambda score: {"score": score, "weight": 2}, scalars)
                ),
                "metrics": st.dictionaries(keys, scalars),
            },
        ),
        min_size=1,
    ),
    scalars,
)
def test_what_is_counted_of_a_record_is_what_its_line_holds(traces, ok):
    stamped = stamp({"id": "e", "ok": ok, "traces": traces}, "run")
    line = decode(encode(stamped))
    outlined = outline(stamped, "episode")

    counted, read = SummaryAccumulator(), SummaryAccumulator()
    counted.add_episode(outlined)
    read.add_episode(line)
    assert counted.state() == read.state()
    assert example_id(outlined) == example_id(line)
