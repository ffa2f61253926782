r"""How two evaluations of the same examples differ, and whether that is more than noise.

The unit is the *example*: rollouts of one example are no independent draws, so each example's
rollouts are averaged first, and the standard error is that of the examples' means (Miller,
"Adding Error Bars to Evals", arXiv 2411.00640, sections 2.2 and 4.2):

- where both evaluations ran at least two same examples, the *paired* difference: the standard
  error of the mean of the per-example differences. It takes out how hard the examples are.
- otherwise two independent samples: the root of the sum of both squared standard errors.

A difference smaller than ``1.96`` standard errors (95 %, two-sided) is called noise.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prefect_prime.encoding import number

#: Standard errors to either side that hold 95 % of a normal distribution.
_Z = 1.96
_FEWEST = 2

#: By example, the values of its rollouts.
Rollouts = Mapping[Any, list[float]]


@dataclass(frozen=True, slots=True)
class Change:
    """``difference`` is the present value minus the baseline's, over ``examples`` examples.

    ``standard_error`` is of the difference; None where there are too few examples to tell.
    """

    difference: float
    standard_error: float | None
    examples: int
    paired: bool

    @property
    def within_noise(self) -> bool:
        """Whether chance alone may have made the difference."""
        return self.standard_error is not None and abs(self.difference) < _Z * self.standard_error


@dataclass(frozen=True, slots=True)
class Worse:
    """An example that got worse: its mean now and in the baseline."""

    example_id: Any
    value: float
    baseline: float


def rollouts_of(rows: Iterable[Mapping[str, Any]], metric: str) -> dict[Any, list[float]]:
    """The values of one metric in sample rows, by example.

    ``avg_reward`` is a row's ``reward``; any other name is looked up in its ``metrics``. Rows
    without a finite value are left out, and so are examples without an id.
    """
    found: dict[Any, list[float]] = {}
    for row in rows:
        held = row.get("metrics")
        values = held if isinstance(held, Mapping) else {}
        raw = row.get("reward") if metric == "avg_reward" else values.get(metric, row.get(metric))
        value, example = number(raw), row.get("example_id")
        if value is not None and isinstance(example, str | int):
            found.setdefault(example, []).append(value)
    return found


def compare(present: Rollouts, baseline: Rollouts) -> Change | None:
    """How a metric changed; None where one side has no example."""
    now, before = _means(present), _means(baseline)
    if not now or not before:
        return None
    shared = now.keys() & before.keys()
    if len(shared) >= _FEWEST:
        differences = [now[example] - before[example] for example in shared]
        return Change(_mean(differences), _standard_error(differences), len(shared), paired=True)
    errors = [_standard_error(list(now.values())), _standard_error(list(before.values()))]
    known = [error for error in errors if error is not None]
    combined = math.hypot(*known) if len(known) == len(errors) else None
    difference = _mean(list(now.values())) - _mean(list(before.values()))
    return Change(difference, combined, min(len(now), len(before)), paired=False)


def got_worse(present: Rollouts, baseline: Rollouts, most: int = 10) -> list[Worse]:
    """The examples whose mean fell, the ones that fell most first."""
    now, before = _means(present), _means(baseline)
    fallen = [
        Worse(example, now[example], before[example])
        for example in now.keys() & before.keys()
        if now[example] < before[example]
    ]
    return sorted(fallen, key=lambda each: (each.value - each.baseline, str(each.example_id)))[
        :most
    ]


def _means(rollouts: Rollouts) -> dict[Any, float]:
    return {example: _mean(values) for example, values in rollouts.items() if values}


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _standard_error(values: list[float]) -> float | None:
    if len(values) < _FEWEST:
        return None
    mean = _mean(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return math.sqrt(variance / len(values))
