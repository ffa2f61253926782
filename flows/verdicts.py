"""What the gates said, as the final artifact shows it: verdict, metric, change, who got worse."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from prefect_prime.flows.markdown import code, figure, link, table, text

_MARKS = {"passed": "✓", "regressed": "✗", "no baseline": "·"}


def section(judgements: Sequence[Mapping[str, Any]], url: str | None) -> str | None:
    """A section in Markdown, with its heading; None without gates. ``url`` is the evaluation's
    page, which the examples link to.
    """
    if not judgements:
        return None
    parts = ["## Gates", table(_HEAD, [_row(each) for each in judgements])]
    parts += [f"- {text(each['reason'])}" for each in judgements if each["verdict"] != "passed"]
    compared = next((each for each in judgements if each.get("baseline_url")), None)
    if compared is not None:
        parts.append(f"Compared with {link('the baseline', str(compared['baseline_url']))}.")
    for each in judgements:
        parts += _worse(each, url)
    return "\n\n".join(parts)


_HEAD = ("", "metric", "value", "baseline", "change", "standard error")


def _row(judgement: Mapping[str, Any]) -> list[str]:
    change = judgement.get("change") or {}
    error = change.get("standard_error")
    noise = " (noise)" if change.get("within_noise") else ""
    return [
        f"{_MARKS.get(judgement['verdict'], '')} {judgement['verdict']}",
        code(str(judgement["metric"])),
        _figure(judgement["value"]),
        _figure(judgement["baseline"]),
        _figure(change.get("difference"), sign=True) + noise,
        "" if error is None else f"± {figure(error)} over {change['examples']} examples",
    ]


def _figure(value: float | None, *, sign: bool = False) -> str:
    if value is None:
        return ""
    return ("+" if sign and value > 0 else "") + figure(value)


def _worse(judgement: Mapping[str, Any], url: str | None) -> Iterator[str]:
    worse = judgement.get("worse") or ()
    if not worse:
        return
    yield f"Examples whose {code(str(judgement['metric']))} fell most:"
    rows = [
        [
            _example(each["example_id"], url),
            figure(each["baseline"]),
            figure(each["value"]),
            _figure(each["value"] - each["baseline"]),
        ]
        for each in worse
    ]
    yield table(("example", "before", "now", "change"), rows)


def _example(example_id: object, url: str | None) -> str:
    shown = str(example_id)
    return code(shown) if url is None else link(shown, f"{url}?example={quote(shown)}#samples")
