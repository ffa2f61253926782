"""The artifact that a person reads at the end: what came out, and why it ended as it did.

Status and reason stand first, then the verdicts of gates.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from prefect_prime.flows import verdicts
from prefect_prime.flows.closing import Closing
from prefect_prime.flows.markdown import (
    bar,
    block,
    code,
    duration,
    figure,
    gauge,
    link,
    plural,
    table,
    text,
)
from prefect_prime.histogram import Bar

_MARKS = {"Completed": "✓", "Regressed": "✗", "Failed": "✗", "Crashed": "✗", "Cancelled": "⊘"}
#: Characters at most: of a reason, of a config.
_REASON = 4096
_CONFIG = 20_000
#: Characters of a line of the reason.
_LINE = 84
#: Metrics that get a row; a verifier with hundreds of scores has them on the platform.
_METRICS = 60
#: Cells of a histogram's longest bar.
_WIDE = 40
_METRIC_NAME = 60
#: Characters of an error's example; the sample itself is on the platform.
_EXAMPLE = 200
_NAME = 120


def markdown(closing: Closing) -> str:
    """The whole summary."""
    url = None if closing.evaluation is None else closing.evaluation.url
    parts = [*_head(closing), verdicts.section(closing.judgements, url) or ""]
    parts += _metrics(closing.metrics)
    parts += _rewards(closing)
    parts += _errors(closing)
    parts += _sinks(closing)
    parts += _config(closing)
    parts += _links(closing)
    return "\n\n".join(part for part in parts if part) + "\n"


def description(closing: Closing) -> str:
    """The summary in one line, for lists of artifacts."""
    parts = [f"**{closing.title}**", plural(closing.episodes, "episode")]
    reward = closing.metrics.get("avg_reward")
    if closing.episodes and _is_number(reward):
        parts.append(f"mean reward {figure(reward)}")
    if told := closing.reason or closing.note:
        parts.append(text(told, 160))
    elif closing.losses:
        parts.append(text(", ".join(closing.losses)))
    return " · ".join(parts)


def _head(closing: Closing) -> Iterator[str]:
    mark = _MARKS.get(closing.title, "…")
    yield f"# {mark} {closing.title}: {text(closing.plan.spec.name, _NAME)}"
    if closing.reason:
        yield block(_wrapped(closing.reason[:_REASON]))
    if closing.note:
        yield f"**{text(closing.note)}**"
    facts = [f"**{plural(closing.episodes, 'episode')}**"]
    reward = closing.metrics.get("avg_reward")
    if closing.episodes and _is_number(reward):
        facts.append(f"mean reward **{figure(reward)}**")
    if closing.episodes and _is_number(failed := closing.metrics.get("avg_error")):
        facts.append(f"**{failed:.1%}** not ok")
    if closing.seconds is not None:
        facts.append(duration(closing.seconds))
    if closing.attempt > 1:
        facts.append(f"attempt {closing.attempt}")
    yield " · ".join(facts)
    evaluation = closing.evaluation
    if evaluation is not None:
        yield f"**{link('Open the evaluation', evaluation.url)}**"
    if closing.losses:
        yield f"**Not everything arrived:** {text('; '.join(closing.losses))}."


def _wrapped(reason: str) -> str:
    """Both UIs wrap no code, and what stands at the end of a line may be what matters."""
    lines = [textwrap.wrap(line, _LINE, replace_whitespace=False) for line in reason.splitlines()]
    return "\n".join(part for wrapped in lines for part in wrapped or [""])


def _metrics(metrics: Mapping[str, Any]) -> Iterator[str]:
    found = list(_numbers(metrics))
    if not found:
        return
    yield "## Metrics"
    rows = [
        [code(name, _METRIC_NAME), figure(value), code(gauge(value)) if 0 <= value <= 1 else ""]
        for name, value in found[:_METRICS]
    ]
    yield table(["metric", "value", "0 to 1"], rows, "lr")
    if len(found) > _METRICS:
        yield f"and {len(found) - _METRICS} more on the evaluation's page"


def _numbers(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Metrics that are numbers, by name; those of ``avg_metrics`` as the dashboard names them."""
    nested = []
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            nested.append((name, value))
        elif _is_number(value):
            yield f"{prefix}{name}", value
    for name, value in nested:
        yield from _numbers(value, "" if name == "avg_metrics" else f"{prefix}{name}.")


def _rewards(closing: Closing) -> Iterator[str]:
    bars = closing.rewards
    if len(bars) < 2:  # noqa: PLR2004 - one value is its own mean
        return
    yield "## Rewards"
    most = max(each.count for each in bars)
    labels = [_range(each) for each in bars]
    total = sum(each.count for each in bars)
    counts = [f"{each.count:,}" for each in bars]
    wide, longest = max(map(len, labels)), max(map(len, counts))
    # The bars come last: their characters are not as wide as others in every font.
    lines = [
        f"{label:>{wide}}  {count:>{longest}}  {each.count / total:>6.1%}  "
        f"{bar(each.count / most, _WIDE)}".rstrip()
        for each, label, count in zip(bars, labels, counts, strict=True)
    ]
    yield block("\n".join(lines))


def _range(each: Bar) -> str:
    low, high = figure(each.low), figure(each.high)
    return low if each.low == each.high else f"{low} to {high}"


def _errors(closing: Closing) -> Iterator[str]:
    if not closing.failures:
        return
    yield "## Errors"
    # No table: one of the UIs wraps no cell.
    yield "\n".join(
        f"- **{each.count:,}** {code(each.type, 80)} {text(each.message, _EXAMPLE)}"
        f" (in {code(each.record or '?', 40)})"
        for each in closing.failures
    )


def _sinks(closing: Closing) -> Iterator[str]:
    yield "## Where the records are"
    rows = [
        [
            sink,
            f"{tally.stored:,}",
            _loud(tally.pending),
            _loud(tally.failed),
            f"{tally.skipped:,}",
        ]
        for sink, tally in closing.tallies.items()
    ]
    yield table(["sink", "stored", "still to go", "not stored", "not applicable"], rows, "lrrrr")
    beside = [
        f"{count:,} {why}"
        for count, why in (
            (
                closing.rejected,
                "rejected: no record that could be stored; see the table of uploads",
            ),
            (closing.dropped, "dropped: the spool could not be written"),
            (closing.torn, "torn: being written when its process died"),
        )
        if count
    ]
    yield "\n".join(f"- **{line}**" for line in beside)


def _loud(count: int) -> str:
    return f"**{count:,}**" if count else "0"


def _config(closing: Closing) -> Iterator[str]:
    spec = closing.plan.spec
    yield "## As launched"
    environments = ", ".join(
        code("/".join(part for part in (ref.owner, ref.name or ref.id) if part))
        for ref in spec.environments
    )
    known = {
        "environment": environments,
        "model": code(spec.model or ""),
        "framework": code(spec.framework or ""),
        "tags": " ".join(code(tag) for tag in spec.tags),
        "episodes expected": code(closing.plan.expected or ""),
    }
    yield "\n".join(f"- {name}: {value}" for name, value in known.items() if value)
    metadata = dict(spec.metadata)
    source = metadata.pop("config_source", None)
    if isinstance(source, Mapping) and isinstance(source.get("text"), str):
        language = str(source.get("format") or "text")
        if source.get("filename"):
            yield code(source["filename"])
        yield block(_cut(source["text"]), language if language.isalnum() else "text")
    if metadata:
        yield block(_cut(json.dumps(metadata, indent=2, default=str, ensure_ascii=False)), "json")


def _cut(config: str) -> str:
    config = config.rstrip("\n").replace("\r\n", "\n").replace("\0", "\u2400")
    return config if len(config) <= _CONFIG else f"{config[:_CONFIG]}\n… (whole in the evaluation)"


def _links(closing: Closing) -> Iterator[str]:
    if closing.evaluation is None:
        return
    yield "## Links"
    lines = [f"- {link(f'evaluation {closing.evaluation.id}', closing.evaluation.url)}"]
    if closing.predecessor:
        lines.append(f"- goes on from evaluation {code(closing.predecessor)}")
    yield "\n".join(lines)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
