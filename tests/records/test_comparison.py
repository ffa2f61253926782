"""Whether a difference is more than noise; the numbers are worked out by hand."""

import math

import pytest

from prefect_prime.comparison import Worse, compare, got_worse, rollouts_of


def test_rollouts_of_an_example_are_averaged_before_anything_else() -> None:
    change = compare({"a": [1.0, 0.0], "b": [1.0]}, {"a": [1.0], "b": [1.0]})

    assert change is not None
    # Differences -0.5 and 0: mean -0.25, deviation 0.3536, divided by the root of 2.
    assert (change.difference, change.examples, change.paired) == (-0.25, 2, True)
    assert change.standard_error == pytest.approx(0.25)
    assert change.within_noise


def test_how_hard_the_examples_are_is_no_noise() -> None:
    hard = {example: [float(example % 2)] for example in range(10)}
    slightly_worse = {example: [value[0] - 0.1] for example, value in hard.items()}

    change = compare(slightly_worse, hard)

    assert change is not None
    assert change.difference == pytest.approx(-0.1)
    assert change.standard_error == pytest.approx(0.0, abs=1e-12)
    assert not change.within_noise


def test_other_examples_are_two_samples() -> None:
    change = compare({1: [1.0], 2: [0.0]}, {3: [1.0], 4: [1.0], 5: [0.0], 6: [0.0]})

    assert change is not None
    assert not change.paired
    # Variances 1/2 over 2 examples and 1/3 over 4.
    assert change.standard_error == pytest.approx(math.sqrt(0.5 / 2 + (1 / 3) / 4))
    assert change.examples == 2


def test_of_one_example_nobody_can_tell() -> None:
    change = compare({1: [1.0]}, {2: [0.0]})

    assert change is not None
    assert change.standard_error is None
    assert not change.within_noise
    assert compare({}, {1: [1.0]}) is None


def test_who_fell_most_comes_first() -> None:
    now = {1: [0.5], 2: [0.0], 3: [1.0], 4: [0.9]}
    before = {1: [1.0], 2: [1.0], 3: [0.0], 4: [1.0], 9: [1.0]}

    assert got_worse(now, before, most=2) == [Worse(2, 0.0, 1.0), Worse(1, 0.5, 1.0)]


def test_values_come_from_rows_and_what_is_no_number_is_left_out() -> None:
    rows = [
        {"example_id": 1, "reward": 1.0, "metrics": {"len": 3}},
        {"example_id": 1, "reward": None, "metrics": {"len": float("nan")}},
        {"example_id": None, "reward": 1.0},
        {"example_id": "x", "reward": 0.5, "metrics": None},
    ]

    assert rollouts_of(rows, "avg_reward") == {1: [1.0], "x": [0.5]}
    assert rollouts_of(rows, "len") == {1: [3.0]}
