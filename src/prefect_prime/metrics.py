"""The summary of an evaluation: rewards, metrics and errors averaged over its records.

The values are those that the dashboard shows. Rewards and metrics are averaged over
the trainable traces, or over all traces where none is trainable; ``avg_error`` is the
share of episodes that are not ok, those without traces included. What is not a finite
number is skipped: such a reward takes its trace out of ``avg_reward``, such a metric
out of that metric's average. A record either counts whole or raises
``RecordRejectedError`` and leaves no mark. Memory grows with the number of metric
names alone, not with the number of records; so the distribution of rewards is known to
within a hundredth of its range, and errors by type, with one example each.
"""

import math
import numbers
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypedDict

from prefect_prime.encoding import decode, encode, number
from prefect_prime.errors import RecordRejectedError
from prefect_prime.failures import Failure, Failures
from prefect_prime.histogram import Bar, Histogram
from prefect_prime.projection import is_trainable, reward_scores, trace_reward
from prefect_prime.records import Kind, to_mapping

__all__ = ["RunSummary", "SummaryAccumulator", "clean", "from_episodes", "merge", "overlay"]


class RunSummary(TypedDict):
    """The three aggregates that the dashboard reads."""

    #: Mean weighted reward of a trace; 0.0 where no trace has one.
    avg_reward: float
    #: Mean per name, of each unweighted score and each metric.
    avg_metrics: dict[str, float]
    #: Share of episodes that are not ok, 0.0 to 1.0.
    avg_error: float


def from_episodes(episodes: Iterable[Any], traces: Iterable[Any] | None = None) -> RunSummary:
    """The summary of ``episodes``: mappings, or objects with ``to_record()``.

    With ``traces``, rewards and metrics come from those instead of the episodes' own.
    Raises RecordRejectedError for a record that is malformed.
    """
    accumulator = SummaryAccumulator()
    for record in episodes:
        episode = to_mapping(record)
        accumulator.add_episode(episode if traces is None else {**episode, "traces": []})
    for record in traces or ():
        accumulator.add_trace(to_mapping(record))
    return accumulator.summary()


@dataclass(slots=True)
class _Contribution:
    """What one trace adds: checked before anything is added."""

    trainable: bool
    reward: float | None
    values: dict[str, float]


@dataclass(slots=True)
class _Sums:
    """Running sums over one set of traces, added in the records' order."""

    traces: int = 0
    rewards: int = 0
    reward: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    distribution: Histogram = field(default_factory=Histogram)

    def add(self, contribution: _Contribution) -> None:
        self.traces += 1
        reward = contribution.reward
        if reward is not None and math.isfinite(self.reward + reward):
            self.reward += reward
            self.rewards += 1
            self.distribution.add(reward)
        for name, value in contribution.values.items():
            total = self.totals.get(name, 0.0) + value
            if math.isfinite(total):
                self.totals[name] = total
                self.counts[name] = self.counts.get(name, 0) + 1

    def state(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("traces", "rewards", "reward")},
            "counts": dict(self.counts),
            "totals": dict(self.totals),
            "distribution": self.distribution.state(),
        }

    def merge(self, other: "_Sums") -> None:
        self.traces += other.traces
        self.distribution.merge(other.distribution)
        if math.isfinite(self.reward + other.reward):
            self.reward += other.reward
            self.rewards += other.rewards
        for name, value in other.totals.items():
            total = self.totals.get(name, 0.0) + value
            if math.isfinite(total):
                self.totals[name] = total
                self.counts[name] = self.counts.get(name, 0) + other.counts[name]


class SummaryAccumulator:
    """Aggregates records as they pass; its state continues in another process.

    ``episodes``, ``traces`` and ``samples`` count what was added by each method.
    """

    def __init__(self) -> None:
        self.episodes = 0
        self.traces = 0
        self.samples = 0
        self._failed = 0
        self._trainable = _Sums()
        self._all = _Sums()
        self._failures = Failures()

    def add(self, kind: Kind, record: Mapping[str, Any]) -> None:
        """Count a record of any kind; raises RecordRejectedError where it is malformed."""
        adders = {
            "episode": self.add_episode,
            "trace": self.add_trace,
            "sample": self.add_sample,
        }
        adders[kind](record)

    def add_episode(self, episode: Mapping[str, Any]) -> None:
        """Count an episode and its traces; one without ``ok`` is not ok."""
        traces = episode.get("traces")
        if not isinstance(traces, (list, tuple)):
            raise RecordRejectedError(f"traces is a list, not {type(traces).__name__}")
        contributions = [_of_trace(trace) for trace in traces]
        self.episodes += 1
        self._failed += not episode.get("ok", False)
        self._failures.add(episode)
        self._add(contributions)

    def add_trace(self, trace: Mapping[str, Any]) -> None:
        """Count a bare trace: its reward and metrics, as it belongs to no episode."""
        contribution = _of_trace(trace)
        self.traces += 1
        self._failures.add(trace)
        self._add([contribution])

    def add_sample(self, row: Mapping[str, Any]) -> None:
        """Count a v0 sample row like an episode with one trace; an ``error`` fails it."""
        contribution = _Contribution(
            trainable=bool(row.get("trainable", True)),
            reward=number(row.get("reward")),
            values=dict(_finite(_block(row, "metrics"))),
        )
        self.samples += 1
        self._failed += bool(row.get("error"))
        self._failures.add(row)
        self._add([contribution])

    def merge(self, other: "SummaryAccumulator") -> None:
        """Count what another one has counted as well, which stays as it is."""
        self.episodes += other.episodes
        self.traces += other.traces
        self.samples += other.samples
        self._failed += other._failed  # noqa: SLF001 - one of this very class
        self._trainable.merge(other._trainable)  # noqa: SLF001
        self._all.merge(other._all)  # noqa: SLF001
        self._failures.merge(other._failures)  # noqa: SLF001

    def summary(self) -> RunSummary:
        """The averages so far; zeros and no metrics before the first record."""
        sums = self._judged
        judged = self.episodes + self.samples
        return {
            "avg_reward": sums.reward / sums.rewards if sums.rewards else 0.0,
            "avg_metrics": {name: sums.totals[name] / sums.counts[name] for name in sums.totals},
            "avg_error": self._failed / judged if judged else 0.0,
        }

    @property
    def _judged(self) -> _Sums:
        """The traces that the averages are over."""
        return self._trainable if self._trainable.traces else self._all

    def rewards(self) -> list[Bar]:
        """How the rewards are distributed that ``avg_reward`` is the mean of."""
        return self._judged.distribution.bars()

    def failures(self) -> list[Failure]:
        """Errors by type, the most frequent first."""
        return self._failures.by_type()

    def state(self) -> dict[str, Any]:
        """Everything that :meth:`from_state` needs, as JSON-able values."""
        return {
            "episodes": self.episodes,
            "traces": self.traces,
            "samples": self.samples,
            "failed": self._failed,
            "trainable": self._trainable.state(),
            "all": self._all.state(),
            "failures": self._failures.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "SummaryAccumulator":
        """An accumulator that goes on where ``state`` was taken, exactly; ``{}`` starts anew."""
        accumulator = cls()
        if state:
            accumulator.episodes = state["episodes"]
            accumulator.traces = state["traces"]
            accumulator.samples = state["samples"]
            accumulator._failed = state["failed"]
            accumulator._trainable = _sums(state["trainable"])
            accumulator._all = _sums(state["all"])
            accumulator._failures = Failures.from_state(state["failures"])
        return accumulator

    def _add(self, contributions: list[_Contribution]) -> None:
        for contribution in contributions:
            self._all.add(contribution)
            if contribution.trainable:
                self._trainable.add(contribution)


def overlay(given: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """What the user gave so far, with the next ``update_summary`` cleaned and laid over it."""
    return merge(given, clean(values))


def clean(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` of ``update_summary`` as JSON, sharing nothing with them.

    An entry that is not a finite number (NaN, an infinity) is dropped at any depth of
    mappings; inside a list it becomes null, so that positions keep their meaning.
    Raises RecordRejectedError for a value that has no JSON form.
    """
    try:
        finite = _without_non_finite(values)
    except RecursionError:
        raise RecordRejectedError("the summary contains itself or is nested too deeply") from None
    cleaned: dict[str, Any] = decode(encode(finite))
    return cleaned


def merge(computed: Mapping[str, Any], user: Mapping[str, Any]) -> dict[str, Any]:
    """``computed`` with the user's values over it, both unchanged.

    Mappings merge key by key at every depth: a user's ``{"avg_metrics": {"pass@1": 0.7}}``
    adds or replaces that one metric. Everything else is replaced whole.
    """
    merged = dict(computed)
    for key, value in user.items():
        below = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = merge(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def _of_trace(record: Any) -> _Contribution:
    trace = to_mapping(record)
    _block(trace, "rewards")
    scores = {
        str(name): score for name, (score, _) in reward_scores(trace).items() if score is not None
    }
    return _Contribution(
        trainable=is_trainable(trace),
        reward=trace_reward(trace),
        values=scores | dict(_finite(_block(trace, "metrics"))),
    )


def _block(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RecordRejectedError(f"{key} is a mapping of names, not {type(value).__name__}")
    return value


def _finite(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if (finite := number(value)) is not None:
            yield str(name), finite


def _sums(state: Mapping[str, Any]) -> _Sums:
    copies = {"counts": dict(state["counts"]), "totals": dict(state["totals"])}
    distribution = Histogram.from_state(state["distribution"])
    return _Sums(**{**state, **copies, "distribution": distribution})


def _without_non_finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _without_non_finite(item) for key, item in value.items() if not _non_finite(item)
        }
    if isinstance(value, (list, tuple)):
        return [_without_non_finite(item) for item in value]
    return value


def _non_finite(value: Any) -> bool:
    kinds = (numbers.Real, Decimal)
    exact = isinstance(value, (numbers.Integral, Fraction))
    return isinstance(value, kinds) and not exact and number(value) is None
