"""Rewards are counted by where they lie, whatever their range, in constant memory."""

import json
import random
from itertools import pairwise

import pytest

from prefect_prime.histogram import Bar, Histogram


def of(values):
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


def test_few_values_are_each_a_bar_of_their_own():
    bars = of([0.0, 1.0, 1.0, 0.5]).bars()

    assert bars == [Bar(0.0, 0.0, 1), Bar(0.5, 0.5, 1), Bar(1.0, 1.0, 2)]


def test_many_values_within_0_and_1_are_shown_on_that_range():
    bars = of([number / 1000 for number in range(101, 1001)]).bars()

    assert (bars[0].low, bars[-1].high, len(bars)) == (0.0, 1.0, 10)
    assert [bar.count for bar in bars] == pytest.approx([0, *[100] * 9], abs=8)
    assert sum(bar.count for bar in bars) == 900


@pytest.mark.parametrize(
    "values",
    [
        [-1e308, 1e308, 0.0],
        [1e308, 1e-308],
        [2.0**60, 2.0**60 + 1024],
        [5e-324, -5e-324],
        [float(number) for number in range(-5000, 5000, 7)],
    ],
)
def test_every_value_is_in_one_bar_whatever_the_range(values):
    bars = of(values).bars()

    assert sum(bar.count for bar in bars) == len(values)
    assert all(before.high <= after.low for before, after in pairwise(bars))


def test_memory_does_not_grow_with_the_number_of_values():
    chance = random.Random(3)  # noqa: S311 - no secret

    state = of(chance.gauss(0, 10) for _ in range(20_000)).state()

    assert len(state["cells"]) <= 128


def test_a_state_goes_on_in_another_process():
    values = [number / 7 for number in range(500)]
    first = of(values[:300])

    second = Histogram.from_state(json.loads(json.dumps(first.state())))
    for value in values[300:]:
        second.add(value)

    assert second.bars() == of(values).bars()


def test_nothing_has_no_bars():
    assert of([]).bars() == []
