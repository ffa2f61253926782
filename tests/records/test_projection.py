"""Rows equal the reference's, whether a record was JSON or a verifiers object."""

import copy
import json
from collections import Counter

import numpy as np
import pytest
from prime_runs.projection import build_samples
from verifiers.v1.episode import WireEpisode

from prefect_prime import projection
from prefect_prime.encoding import decode, encode
from prefect_prime.projection import example_id, sample_rows, summary_trace_index, trace_reward


def rows_of(records):
    """Rows of records in their order, each example's rollouts numbered from 1."""
    rollouts = Counter()
    rows = []
    for record in records:
        number = rollouts[example_id(record)] + 1
        projected = sample_rows(record, number)
        assert projected.oversized == {}
        rows += projected.rows
        rollouts[example_id(record)] += bool(projected.rows)
    return rows


def test_json_lines_give_the_reference_rows(reference_run):
    assert rows_of(map(decode, reference_run.lines)) == reference_run.rows


def test_verifiers_objects_give_the_reference_rows(reference_run):
    records = [
        WireEpisode.model_validate(episode).to_record() for episode in reference_run.episodes
    ]

    assert rows_of(decode(encode(record)) for record in records) == reference_run.rows


def usage(fed, sampled, **more):
    return {"prompt_tokens": fed, "completion_tokens": sampled, **more}


def branching(clean_episode):
    """An episode whose trace forks after its first reply, with caches and costs."""
    episode = copy.deepcopy(clean_episode)
    [trace] = episode["traces"]
    ask = {"message": {"role": "user", "content": "more"}, "sampled": False, "semantic_parents": []}
    reply = {"message": {"role": "assistant", "content": "5"}, "sampled": True}
    trace["nodes"] += [
        {**ask, "parent": 2, "timestamp": 1.0},
        {**reply, "parent": 3, "timestamp": 2.0},
        {**ask, "parent": 2, "timestamp": 3.0},
        {**reply, "parent": 5, "timestamp": 4.0},
        {**ask, "timestamp": 5.0},
    ]
    call = {"model": "m", "time": {"start": 1.0, "end": 2.0}}
    trace["calls"] += [
        {**call, "node": 4, "usage": usage(10, 7, cached_input_tokens=20, cost=0.1)},
        {**call, "node": 6, "usage": usage(9, 3, reasoning_tokens=2, cost=0.2)},
        {**call, "finish_reason": "length", "usage": usage(1, 1, cached_input_tokens=4)},
        {**call, "error": {"type": "ProviderError", "message": "m"}},
    ]
    trace["rewards"]["third"] = {"score": 0.1, "weight": 0.7}
    return episode


def test_branches_usage_and_truncation_are_those_of_verifiers(clean_episode):
    episode = branching(clean_episode)
    [expected] = build_samples([WireEpisode.model_validate(episode)])
    expected["info"]["native_wrapper"] = episode

    [row] = sample_rows(episode, 1).rows

    assert row == json.loads(json.dumps(expected))
    assert row["is_truncated"]
    assert len(row["trajectory"]) == 3


@pytest.mark.parametrize("trainable", [[False, True, True], [False, False]])
def test_the_summary_trace_is_the_first_trainable_else_the_first(trainable):
    episode = {"traces": [{"agent": {"trainable": each}} for each in trainable]}

    assert summary_trace_index(episode) == (1 if any(trainable) else 0)


def test_an_episode_without_traces_has_no_row():
    assert sample_rows({"id": "e", "traces": []}, 1) == projection.Projection()


def test_missing_keys_have_natural_empty_values():
    [row] = sample_rows({"id": "e", "traces": [{"id": "t"}]}, 3).rows

    assert row == {
        "sample_id": "e",
        "example_id": None,
        "rollout_number": 3,
        "episode_id": "e",
        "agent": "agent",
        "trainable": True,
        "task": {},
        "prompt": [],
        "completion": [],
        "answer": None,
        "tool_defs": None,
        "reward": 0.0,
        "timing": {},
        "is_completed": False,
        "is_truncated": False,
        "metrics": {},
        "error": None,
        "stop_condition": None,
        "trajectory": [],
        "token_usage": None,
        "info": {"native_wrapper": {"id": "e", "traces": [{"id": "t"}]}, "native_trace_index": 0},
    }


def places(value, place=()):
    """The path of every value inside ``value``."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*place, key)
        if isinstance(item, (dict, list)):
            yield from places(item, (*place, key))


@pytest.mark.parametrize("wrong", [None, -1, 1.5, "text", [], [None, 1, [], {"x": 1}], {"x": []}])
def test_a_wrong_type_anywhere_never_raises(clean_episode, wrong):
    line = json.dumps(clean_episode)
    for *parents, key in places(clean_episode):
        broken = holder = json.loads(line)
        for parent in parents:
            holder = holder[parent]
        holder[key] = wrong

        assert len(sample_rows(broken, 1).rows) <= 2
        hash(example_id(broken))


@pytest.mark.parametrize("parents", [[0], [1, 0], [None, 7], [None, -1], [None, "0"]])
def test_a_graph_that_is_none_ends(parents):
    nodes = [{"parent": parent, "message": {"role": "user"}} for parent in parents]

    sample_rows({"id": "e", "traces": [{"nodes": nodes}]}, 1)


def test_a_null_score_makes_the_reward_null(null_score_episodes):
    rows = rows_of(null_score_episodes)

    by_kind = {row["info"]["kind"]: row for row in rows}
    assert by_kind["nan"]["reward"] is None
    assert by_kind["nan"]["correct"] is None
    assert by_kind["nan"]["short"] == 1.0
    assert by_kind["add"]["reward"] == 1.2


def test_a_reward_that_scoring_did_not_reach_is_left_out():
    assert trace_reward({"rewards": {"a": None, "b": {"score": 1, "weight": 0.5}}}) == 0.5


def test_rows_share_nothing_with_the_episode(clean_episode):
    before = copy.deepcopy(clean_episode)

    [row] = sample_rows(clean_episode, 1).rows
    row["info"]["native_wrapper"]["traces"][0]["info"]["new"] = 1
    row["completion"][0]["content"] = "changed"
    row["trajectory"][0]["messages"][1]["content"] = "changed"
    row["metrics"]["new"] = 1

    assert clean_episode == before


def test_an_oversized_row_becomes_one_row_per_trace_and_names_what_still_does_not_fit():
    small = {"id": "small", "info": {"text": "x" * 2000}, "agent": {"name": "judge"}}
    large = {"id": "large", "info": {"text": "x" * 5000}}
    episode = {"id": "e", "traces": [small, large]}

    projected = sample_rows(episode, 2, limit=4000)

    [(trace, size)] = projected.oversized.items()
    assert (trace, size) == ("large", pytest.approx(5400, abs=200))
    [row] = projected.rows
    assert (row["sample_id"], row["episode_id"], row["rollout_number"]) == ("small", "e", 2)
    assert row["info"] == small["info"]


def test_a_row_may_fill_a_request_to_the_byte():
    episode = {"id": "e", "traces": [{"id": "t", "info": {"text": "ü🧪"}}]}
    [row] = sample_rows(episode, 1).rows
    exact = len(json.dumps({"samples": [row]}, ensure_ascii=False, separators=(",", ":")).encode())

    assert "native_wrapper" in sample_rows(episode, 1, exact).rows[0]["info"]
    assert "native_wrapper" not in sample_rows(episode, 1, exact - 1).rows[0]["info"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"idx": 0, "id": "q"}, 0),
        ({"idx": None, "id": "q"}, "q"),
        ({"idx": np.int64(4)}, 4),
        ({"idx": 2**60 + 1}, 2**60 + 1),
        ({"id": "\ud800"}, "\ufffd"),
        ({"idx": [1]}, None),
        ({}, None),
    ],
)
def test_the_example_is_the_index_or_else_the_durable_id(data, expected):
    task = {"data": data}

    assert example_id({"traces": [{"task": task}]}) == expected
    assert example_id({"task": task, "traces": []}) == expected


def test_large_integers_stay_exact_in_rows():
    line = encode({"id": "e", "traces": [{"id": "t", "info": {"n": 2**80}}]})

    [row] = sample_rows(decode(line), 1).rows

    assert row["info"]["n"] == 2**80
    assert row["info"]["native_wrapper"]["traces"][0]["info"]["n"] == 2**80
