"""How a run and its result look in a notebook: a link, and the metrics."""

from collections.abc import Mapping
from html import escape
from typing import Any

from prefect_prime.flows.markdown import figure


def html(
    name: str, url: str | None, facts: Mapping[str, object], metrics: Mapping[str, Any]
) -> str:
    """A heading that links to the evaluation, facts on one line, then a row per metric.

    Everything is escaped; colours and fonts are the notebook's own.
    """
    title = escape(name)
    if url is not None and url.startswith(("http://", "https://")):
        title = f'<a href="{escape(url)}" target="_blank" rel="noopener">{title}</a>'
    line = " · ".join(f"{escape(str(key))} {escape(str(value))}" for key, value in facts.items())
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(key)}</th>'
        f'<td style="text-align:right">{escape(figure(value))}</td></tr>'
        for key, value in _numbers(metrics)
    )
    table = f"<table>{rows}</table>" if rows else ""
    return f"<div><strong>{title}</strong><div>{line}</div>{table}</div>"


def _numbers(metrics: Mapping[str, Any]) -> list[tuple[str, float]]:
    nested = metrics.get("avg_metrics")
    flat = {**metrics, **(nested if isinstance(nested, Mapping) else {})}
    return [
        (str(key), value)
        for key, value in flat.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
