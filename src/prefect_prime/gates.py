"""Gates: what an evaluation must reach, and how far it may fall behind the one before.

A gate that does not hold makes the flow run Failed with the name ``Regressed``, while the
evaluation itself is COMPLETED: it is valid, and so may be what a later one is compared with.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from prefect_prime.comparison import Change, Worse, compare, got_worse, rollouts_of
from prefect_prime.errors import ConfigurationError

Verdict = Literal["passed", "regressed", "no baseline"]


@dataclass(frozen=True)
class Gate:
    """What one metric must be.

    ``metric`` is a name of the summary, like ``avg_reward``, or one of its ``avg_metrics``. At
    least one of the three is given:

    - ``minimum``, ``maximum``: the metric must be at least, or at most, that.
    - ``max_drop``: it must not be lower than the baseline's by more than that. For a metric
      where less is better, use ``maximum``.

    Raises ``ConfigurationError`` for one that can decide nothing.
    """

    metric: str
    minimum: float | None = None
    maximum: float | None = None
    max_drop: float | None = None

    def __post_init__(self) -> None:
        bars = {name: getattr(self, name) for name in ("minimum", "maximum", "max_drop")}
        given = {name: bar for name, bar in bars.items() if bar is not None}
        if not self.metric or not isinstance(self.metric, str):
            raise ConfigurationError(f"a gate's metric is a name, not {self.metric!r}")
        if not given:
            raise ConfigurationError(
                f"the gate on {self.metric} has no bar: give minimum=, maximum= or max_drop="
            )
        for name, bar in given.items():
            if isinstance(bar, bool) or not isinstance(bar, int | float) or not math.isfinite(bar):
                raise ConfigurationError(
                    f"{name}={bar!r} of the gate on {self.metric} is not a finite number"
                )
        if self.max_drop is not None and self.max_drop < 0:
            raise ConfigurationError(f"max_drop of the gate on {self.metric} is below 0")

    @classmethod
    def parse(cls, value: Any) -> "Gate":
        """A gate, or a mapping with the same names, as in prefect.yaml."""
        if isinstance(value, cls):
            return value
        known = {each.name for each in fields(cls)}
        if not isinstance(value, Mapping) or "metric" not in value or value.keys() - known:
            raise ConfigurationError(
                f"{value!r} is not a gate: use Gate(...) or a mapping with metric and"
                f" {', '.join(sorted(known - {'metric'}))}"
            )
        return cls(**value)


@dataclass(frozen=True)
class Baseline:
    """The evaluation that this one is compared with, and its rows where they are known."""

    evaluation_id: str
    url: str
    metrics: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True)
class Judgement:
    """What a gate said of one evaluation."""

    gate: Gate
    verdict: Verdict
    value: float | None
    reason: str
    baseline: float | None = None
    change: Change | None = None
    worse: Sequence[Worse] = ()
    compared_with: Baseline | None = None

    def as_metadata(self) -> dict[str, Any]:
        """JSON for the evaluation's metadata, and the event."""
        change = None
        if self.change is not None:
            change = {**asdict(self.change), "within_noise": self.change.within_noise}
        return {
            **asdict(self.gate),
            "verdict": self.verdict,
            "value": self.value,
            "reason": self.reason,
            "baseline": self.baseline,
            "change": change,
            "worse": [asdict(each) for each in self.worse],
            "baseline_id": self.compared_with and self.compared_with.evaluation_id,
            "baseline_url": self.compared_with and self.compared_with.url,
        }


def judge(
    gates: Sequence[Gate],
    summary: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] | None,
    baseline: Baseline | None,
) -> list[Judgement]:
    """What each gate says of an evaluation with this summary.

    ``rows`` are its sample rows, where they are known: they tell noise, and who got worse.
    """
    return [_judge(gate, summary, rows, baseline) for gate in gates]


def _judge(
    gate: Gate,
    summary: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] | None,
    baseline: Baseline | None,
) -> Judgement:
    value = metric_of(summary, gate.metric)
    if value is None:
        known = ", ".join(sorted(names_of(summary)))
        reason = f"this evaluation has no metric {gate.metric!r} (it has: {known})"
        return Judgement(gate, "regressed", None, reason)
    before = None if baseline is None else metric_of(baseline.metrics, gate.metric)
    change: Change | None = None
    worse: Sequence[Worse] = ()
    if baseline is not None and before is not None:
        change, worse = _compared(gate.metric, value - before, rows, baseline.rows)
    failures = []
    if gate.minimum is not None and value < gate.minimum:
        failures.append(f"{gate.metric} {value:.4g} is below {gate.minimum:.4g}")
    if gate.maximum is not None and value > gate.maximum:
        failures.append(f"{gate.metric} {value:.4g} is above {gate.maximum:.4g}")
    # A sum of decimals is off by the last bits: a drop of exactly max_drop is none too far.
    if gate.max_drop is not None and before is not None:
        drop = before - value
        if drop > gate.max_drop and not math.isclose(drop, gate.max_drop, rel_tol=1e-9):
            failures.append(
                f"{gate.metric} fell by {drop:.4g} from {before:.4g} to {value:.4g}, more than"
                f" {gate.max_drop:.4g}{_noise(change)}"
            )
    verdict: Verdict = "passed"
    reason = f"{gate.metric} {value:.4g}"
    if failures:
        verdict, reason = "regressed", "; ".join(failures)
    elif gate.max_drop is not None and before is None:
        verdict, reason = "no baseline", f"{reason}: there is no evaluation to compare it with"
    elif before is not None and value < before:
        reason += f", {before - value:.4g} less than before{_noise(change)}"
    return Judgement(gate, verdict, value, reason, before, change, worse, baseline)


def _compared(
    metric: str,
    difference: float,
    rows: Sequence[Mapping[str, Any]] | None,
    baseline_rows: Sequence[Mapping[str, Any]] | None,
) -> tuple[Change, Sequence[Worse]]:
    """The change of a metric: its size is the summaries', its noise that of the rows."""
    unknown = Change(difference, None, 0, paired=False)
    if rows is None or baseline_rows is None:
        return unknown, ()
    name = metric.removeprefix("avg_metrics.")
    now, before = rollouts_of(rows, name), rollouts_of(baseline_rows, name)
    found = compare(now, before)
    if found is None:
        return unknown, ()
    measured = Change(difference, found.standard_error, found.examples, found.paired)
    return measured, got_worse(now, before)


def _noise(change: Change | None) -> str:
    if change is None or change.standard_error is None:
        return ""
    size = f"standard error {change.standard_error:.2g} over {change.examples} examples"
    return f" (within the noise: {size})" if change.within_noise else f" ({size})"


def metric_of(summary: Mapping[str, Any], metric: str) -> float | None:
    """A metric of a summary by its name, there or in ``avg_metrics``."""
    value = names_of(summary).get(metric.removeprefix("avg_metrics."))
    return value if value is None or math.isfinite(value) else None


def names_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Every metric of a summary by its name."""
    inner = summary.get("avg_metrics")
    both = {**(inner if isinstance(inner, Mapping) else {}), **summary}
    return {
        str(name): float(value)
        for name, value in both.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
