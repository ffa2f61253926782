"""Averages equal the reference's, in constant memory, and survive whatever is logged."""

import json
import math
from decimal import Decimal

import numpy as np
import pytest
from verifiers.v1.episode import WireEpisode

from prefect_prime.errors import RecordRejectedError
from prefect_prime.metrics import SummaryAccumulator, clean, from_episodes, merge, overlay


def approx(summary):
    metrics = pytest.approx(summary["avg_metrics"], rel=1e-12)
    rest = {name: pytest.approx(summary[name], rel=1e-12) for name in ("avg_reward", "avg_error")}
    return {**rest, "avg_metrics": metrics}


def trace(score=None, *, trainable=True, metrics=None):
    rewards = {} if score is None else {"r": {"score": score, "weight": 1.0}}
    return {"agent": {"trainable": trainable}, "rewards": rewards, "metrics": metrics or {}}


def episode(*traces, ok=True):
    return {"id": "e", "ok": ok, "traces": list(traces)}


def test_json_episodes_give_the_reference_summary(reference_run):
    assert from_episodes(reference_run.episodes) == approx(reference_run.summary)


def test_verifiers_objects_give_the_reference_summary(reference_run):
    episodes = [WireEpisode.model_validate(episode) for episode in reference_run.episodes]

    assert from_episodes(episodes) == approx(reference_run.summary)


def test_a_state_continues_exactly_in_another_process(reference_run):
    accumulator = SummaryAccumulator()
    for each in reference_run.episodes:
        accumulator.add("episode", each)
        accumulator = SummaryAccumulator.from_state(json.loads(json.dumps(accumulator.state())))

    assert accumulator.summary() == from_episodes(reference_run.episodes)
    assert accumulator.episodes == len(reference_run.episodes)


def test_parts_merged_are_the_whole(reference_run):
    whole = SummaryAccumulator()
    for start in range(3):
        part = SummaryAccumulator()
        for each in reference_run.episodes[start::3]:
            part.add("episode", each)
        before = part.state()
        whole.merge(part)
        assert part.state() == before
    whole.merge(SummaryAccumulator())

    assert whole.summary() == approx(from_episodes(reference_run.episodes))
    assert whole.episodes == len(reference_run.episodes)


def test_merged_sums_never_leave_the_finite_numbers():
    parts = [SummaryAccumulator() for _ in range(2)]
    for part in parts:
        part.add_episode(episode(trace(1e308)))
    parts[0].merge(parts[1])

    assert parts[0].summary()["avg_reward"] == 1e308


def test_nothing_logged_has_zeros():
    zeros = {"avg_reward": 0.0, "avg_metrics": {}, "avg_error": 0.0}

    assert from_episodes([]) == zeros
    assert SummaryAccumulator.from_state({}).summary() == zeros


def test_trainable_traces_alone_count_where_there_are_any():
    judge, solver = trace(9.0, trainable=False), trace(1.0)

    assert from_episodes([episode(judge)])["avg_reward"] == 9.0
    assert from_episodes([episode(judge), episode(solver, judge)])["avg_reward"] == 1.0


def test_traces_given_apart_replace_the_episodes_own():
    summary = from_episodes([episode(trace(1.0), ok=False)], traces=[trace(0.5)])

    assert summary == {"avg_reward": 0.5, "avg_metrics": {"r": 0.5}, "avg_error": 1.0}


def test_episodes_that_are_not_ok_count_as_errors_even_without_traces():
    episodes = [episode(trace(1.0)), episode(ok=False), {"id": "e", "traces": []}]

    assert from_episodes(episodes)["avg_error"] == 2 / 3


@pytest.mark.parametrize("score", [math.nan, math.inf, None, "1", np.float64("nan"), [1]])
def test_a_reward_that_is_no_finite_number_is_skipped(score):
    broken = {"rewards": {"r": {"score": score}, "s": {"score": 1.0}}}

    summary = from_episodes([episode(broken, trace(0.25))])

    assert summary["avg_reward"] == 0.25
    assert summary["avg_metrics"] == {"r": 0.25, "s": 1.0}


def test_a_metric_that_is_no_finite_number_is_skipped_for_that_metric_alone():
    traces = [trace(1.0, metrics={"m": value, "k": 1}) for value in (math.nan, "text", None, 2)]

    assert from_episodes([episode(*traces)])["avg_metrics"] == {"r": 1.0, "m": 2.0, "k": 1.0}


def test_numpy_numbers_decimals_and_bools_are_numbers():
    metrics = {"a": np.float32(0.1), "b": np.int64(3), "c": True, "d": np.bool_(0)}
    metrics["e"] = Decimal("1.10")

    averages = from_episodes([episode(trace(metrics=metrics))])["avg_metrics"]

    assert averages == {"a": 0.1, "b": 3.0, "c": 1.0, "d": 0.0, "e": 1.1}


def test_sums_never_leave_the_finite_numbers():
    traces = [trace(1e308), trace(1e308)]

    assert from_episodes([episode(*traces)])["avg_reward"] == 1e308


@pytest.mark.parametrize(
    "broken",
    [
        {"traces": None},
        {},
        {"traces": [trace(5.0), 1]},
        {"traces": [trace(5.0), {"rewards": [1]}]},
        {"traces": [trace(5.0), {"metrics": "m"}]},
    ],
)
def test_a_malformed_record_raises_and_leaves_no_mark(broken):
    accumulator = SummaryAccumulator()
    accumulator.add_episode(episode(trace(1.0)))
    before = accumulator.state()

    with pytest.raises(RecordRejectedError):
        accumulator.add_episode({"ok": False, **broken})

    assert accumulator.state() == before


def test_bare_traces_count_in_rewards_and_in_no_error():
    accumulator = SummaryAccumulator()
    accumulator.add("trace", trace(0.5, metrics={"m": 1}))

    expected = {"avg_reward": 0.5, "avg_metrics": {"r": 0.5, "m": 1.0}, "avg_error": 0.0}
    assert accumulator.summary() == expected
    assert accumulator.traces == 1


def test_a_sample_row_counts_like_an_episode_with_one_trace():
    accumulator = SummaryAccumulator()
    accumulator.add("sample", {"sample_id": "1", "reward": 1.0, "metrics": {"m": 2}})
    accumulator.add("sample", {"sample_id": "2", "reward": None, "error": {"type": "E"}})

    expected = {"avg_reward": 1.0, "avg_metrics": {"m": 2.0}, "avg_error": 0.5}
    assert accumulator.summary() == expected
    assert accumulator.samples == 2


def test_a_users_values_are_cleaned_and_merge_by_name_over_the_computed():
    computed = {"avg_reward": 0.5, "avg_metrics": {"r": 0.5, "m": 1.0}, "avg_error": 0.0}
    given = overlay({}, {"avg_metrics": {"pass@1": np.float32(0.7), "r": math.nan}, "note": {1, 2}})
    given = overlay(given, {"avg_metrics": {"m": 0.25}, "avg_reward": math.inf})

    assert merge(computed, given) == {
        "avg_reward": 0.5,
        "avg_metrics": {"r": 0.5, "m": 0.25, "pass@1": 0.7},
        "avg_error": 0.0,
        "note": [1, 2],
    }
    assert computed["avg_metrics"] == {"r": 0.5, "m": 1.0}


def test_non_finite_values_are_dropped_at_any_depth():
    values = {"a": {"b": Decimal("NaN"), "c": [1, math.nan, {"d": np.float64("inf")}]}, "n": None}

    assert clean(values) == {"a": {"c": [1, None, {}]}, "n": None}


def test_a_summary_that_has_no_json_form_is_rejected():
    circular = {}
    circular["again"] = circular

    for values in ({"o": object()}, circular):
        with pytest.raises(RecordRejectedError):
            clean(values)
