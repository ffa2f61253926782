"""What a record is, what it is called, and whose run it belongs to."""

import copy
import json

import numpy as np
import pytest
from prime_runs.sinks.base import stamp_run
from verifiers.v1.episode import WireEpisode

from prefect_prime.encoding import decode, encode
from prefect_prime.errors import RecordRejectedError
from prefect_prime.records import kind_of, origin_of, record_id, restore, stamp, to_mapping


class Failing:
    def to_record(self):
        raise OSError("gone")


class Wrong:
    def to_record(self):
        return "text"


def test_a_mapping_is_its_own_record_and_an_object_gives_its_own(clean_episode):
    assert to_mapping(clean_episode) is clean_episode
    assert to_mapping(WireEpisode.model_validate(clean_episode)) == clean_episode


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("text", "a mapping or an object with to_record"),
        (None, "not NoneType"),
        (Failing, "not type"),
        (Failing(), "OSError: gone"),
        (Wrong(), "returned str, not a mapping"),
    ],
)
def test_anything_else_is_rejected_with_its_reason(record, reason):
    with pytest.raises(RecordRejectedError, match=reason):
        to_mapping(record)


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"id": "e", "traces": []}, "episode"),
        ({"id": "e", "sample_id": "s", "traces": []}, "episode"),
        ({"sample_id": "s", "id": "x"}, "sample"),
        ({"id": "t"}, "trace"),
    ],
)
def test_the_keys_tell_the_kind(record, kind):
    assert kind_of(record) == kind


def test_the_id_is_text():
    assert record_id({"id": "e"}, "episode") == "e"
    assert record_id({"id": np.str_("t")}, "trace") == "t"
    assert record_id({"id": "x", "sample_id": "s"}, "sample") == "s"
    assert record_id({"sample_id": 7}, "sample") == "7"
    assert record_id({"id": "\ud800"}, "trace") == "\ufffd"


@pytest.mark.parametrize(
    ("record", "kind", "reason"),
    [
        ({}, "episode", "id of a record of kind episode must be text: it is missing"),
        ({"id": None}, "trace", "it is NoneType"),
        ({"id": 7}, "episode", "it is int"),
        ({"sample_id": True}, "sample", "sample_id of a record of kind sample .* it is bool"),
        ({"id": ""}, "trace", "is empty"),
    ],
)
def test_a_record_without_a_usable_id_is_rejected(record, kind, reason):
    with pytest.raises(RecordRejectedError, match=reason):
        record_id(record, kind)


RUNS = [
    {"id": "e", "traces": []},
    {"id": "t"},
    {"id": "t", "run": {"id": "own", "type": "train", "work": {"step": 1}}},
    {"id": "e", "run": {"id": "own", "name": "n"}, "traces": [{"id": "a"}, {"id": "b"}]},
    {"id": "e", "run": None, "traces": [{"id": "a", "run": None}, {"id": "b", "run": {}}]},
    {"id": "e", "traces": [{"id": "a", "run": {"id": "m", "name": "k"}}, {"id": "b"}]},
    {"id": "e", "run": "odd", "traces": [{"id": "a", "run": ["odd"]}]},
    {"id": "e", "run": {"id": 2**70, "name": "\u2028"}, "traces": [{"id": "a"}]},
]


@pytest.mark.parametrize("record", RUNS)
def test_stamping_keys_the_record_and_its_members_as_the_reference_does(record):
    before = copy.deepcopy(record)

    assert stamp(record, "run-1") == stamp_run(record, "run-1", "eval")
    assert record == before


@pytest.mark.parametrize("record", RUNS)
def test_restoring_undoes_stamping_on_a_decoded_line(record):
    line = encode(stamp(record, "token")).replace(b"token", b"evaluation")

    assert restore(decode(line), origin_of(record)) == record


def test_real_records_come_back_and_share_one_origin_per_run(reference_run):
    origins = set()
    for episode in reference_run.episodes:
        origin = origin_of(episode)
        origins.add(origin)
        assert restore(decode(encode(stamp(episode, "r"))), origin) == episode

    assert len(origins) == len({json.dumps(e.get("run")) for e in reference_run.episodes})


def test_an_origin_does_not_depend_on_the_order_of_keys():
    one, other = {"id": "r", "name": "n"}, {"name": "n", "id": "r"}

    assert origin_of({"id": "t", "run": one}) == origin_of({"id": "t", "run": other})


def test_members_that_are_objects_are_stamped_too(clean_episode):
    [trace] = WireEpisode.model_validate(clean_episode).traces
    record = {"id": "e", "traces": (trace,)}

    stamped = stamp(record, "r")

    assert stamped["traces"][0]["run"] == {"id": "r", "type": "eval"}
    assert stamped["traces"][0]["id"] == trace.id
    assert origin_of(record) == "{}"


@pytest.mark.parametrize("traces", [None, {}, "text", [1], [["x"]]])
def test_traces_that_are_no_list_of_traces_are_rejected(traces):
    record = {"id": "e", "traces": traces}

    for function in (origin_of, lambda record: stamp(record, "r")):
        with pytest.raises(RecordRejectedError):
            function(record)
