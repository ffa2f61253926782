"""What the page of one evaluation shows, gathered in the order in which it is read: how it
ended and why, its numbers, what went wrong, what changed, and every sample.
"""

import math
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from prefect_prime.encoding import number
from prefect_prime.local import pages_listing
from prefect_prime.local.evaluations import MAX_PAGE, OPEN, view
from prefect_prime.local.pages_charts import histogram
from prefect_prime.local.pages_facts import as_text, mapping
from prefect_prime.local.pages_render import safe_url
from prefect_prime.local.pages_rollouts import EXAMPLES, PAGE, SORTS, Rollouts, Selection
from prefect_prime.local.store import now
from prefect_prime.local.wire import Platform

#: Seconds after which the page of a running evaluation looks again.
REFRESH = 5
#: Metrics that have a card of their own; more are in a table.
MAX_CARDS = 8
#: Metrics that are shown at all, and characters of a value that is not a number.
MAX_METRICS = 200
MAX_VALUE = 500

#: Gates that are shown.
MAX_GATES = 50

_HEADLINES = ("avg_reward", "avg_error")
#: What a link of the page keeps of its address.
_KEPT = (
    *("example", "error", "only", "low", "high", "sort", "order", "page"),
    *("examples", "baseline", "live"),
)


def page_number(value: str | None) -> int:
    """A page that was asked for, from 1; the first where that makes no sense."""
    if value is None or not value.isascii() or not value.isdigit() or len(value) > len("1000000"):
        return 1
    return min(MAX_PAGE, max(1, int(value)))


def summary(platform: Platform, row: sqlite3.Row) -> dict[str, Any]:
    """An evaluation as the API shows it, with what every page says of it besides."""
    shown = view(platform, row)
    metrics = mapping(shown["metrics"])
    gates = _gates(mapping(mapping(shown["metadata"]).get("prefect")).get("gates"))
    is_open = row["status"] in OPEN
    ended = now() if is_open else row["finalized_at"] or row["updated_at"]
    return {
        **shown,
        "is_open": is_open,
        "created": row["created_at"],
        "duration_ms": (ended - row["created_at"]) / 1000,
        "reward": number(metrics.get("avg_reward")),
        "error_share": number(metrics.get("avg_error")),
        "gates": gates,
        "is_regressed": any(gate["verdict"] == "regressed" for gate in gates),
        "plain_tags": [tag for tag in shown["tags"] if not tag.startswith(_LINKED_TAGS)],
    }


def _gates(value: Any) -> list[dict[str, str]]:
    """What each gate said; its words alone, whatever the producer put there."""
    known = [gate for gate in value if isinstance(gate, dict)] if isinstance(value, list) else []
    names = ("metric", "verdict", "reason")
    return [{name: as_text(gate.get(name) or "") for name in names} for gate in known[:MAX_GATES]]


#: Tags that the page shows as links to what they name.
_LINKED_TAGS = (pages_listing.RETRY_OF, "prefect-flow-run:")


def evaluation_page(
    platform: Platform, connection: sqlite3.Connection, row: sqlite3.Row, asked: Mapping[str, str]
) -> dict[str, Any]:
    """The values of the template, for an address with the parameters ``asked``."""
    evaluation = summary(platform, row)
    given = {name: asked[name] for name in _KEPT if asked.get(name)}
    rollouts = Rollouts(connection, row["id"])
    totals = rollouts.totals()
    bars = rollouts.histogram()
    baseline = _baseline(platform, connection, row, given, rollouts)
    metadata = mapping(evaluation["metadata"])
    compared = {} if baseline["row"] is None else mapping(baseline["row"]["metrics"])
    return {
        "evaluation": evaluation,
        "environments": pages_listing.environments_of(connection, row["id"]),
        "given": given,
        "refresh": REFRESH if evaluation["is_open"] and given.get("live") != "off" else None,
        "totals": totals,
        "prefect": _prefect(mapping(metadata.get("prefect"))),
        "losses": _losses(mapping(metadata.get("prefect"))),
        **_metrics(mapping(evaluation["metrics"]), compared, totals, is_open=evaluation["is_open"]),
        "bars": histogram(bars),
        "lowest": bars[0].low if bars else None,
        "highest": bars[-1].high if bars else None,
        "errors": rollouts.errors() if totals["errors"] else [],
        "baseline": baseline,
        **_related(platform, connection, evaluation),
        **_examples(rollouts, given),
        **_table(rollouts, totals, given),
        **_config(metadata),
    }


def _baseline(
    platform: Platform,
    connection: sqlite3.Connection,
    row: sqlite3.Row,
    given: Mapping[str, str],
    rollouts: Rollouts,
) -> dict[str, Any]:
    """What the evaluation is compared with: the one asked for, else the last COMPLETED one
    before it of the same environments and model.
    """
    others = pages_listing.comparable(connection, row)
    wanted = given.get("baseline")
    chosen = next((other for other in others if other["id"] == wanted), None)
    if chosen is None and others and wanted is None:
        first = summary(platform, others[0])
        is_same_model = first["model_name"] == view(platform, row)["model_name"]
        chosen = others[0] if is_same_model and others[0]["seq"] < row["seq"] else None
    totals, worst = (None, []) if chosen is None else rollouts.changes(chosen["id"])
    return {
        "row": None if chosen is None else summary(platform, chosen),
        "choices": [summary(platform, other) for other in others[:20]],
        "totals": totals,
        "worst": worst,
    }


def _metrics(
    metrics: Mapping[str, Any], compared: Mapping[str, Any], totals: sqlite3.Row, *, is_open: bool
) -> dict[str, Any]:
    """The metrics: some as cards, all others as a table. While the evaluation runs and has
    none yet, the mean of the rewards so far.
    """
    flat = dict(_flat(metrics))
    before = dict(_flat(compared))
    if "avg_reward" not in flat and totals["scored"] and is_open:
        flat = {"avg_reward": totals["mean"], **flat}
    ordered = [name for name in _HEADLINES if name in flat]
    ordered += [name for name in flat if name not in ordered]
    shown = []
    for name in ordered[:MAX_METRICS]:
        value, then = number_of(flat[name]), number_of(before.get(name))
        shown.append(
            {
                "name": name.removeprefix("avg_metrics."),
                "value": value,
                "text": None if value is not None else _short(flat[name]),
                "is_headline": name in _HEADLINES,
                "is_share": name == "avg_error",
                "before": then,
                "change": None if value is None or then is None else value - then,
                "lower_is_better": name == "avg_error",
                "is_internal": name.startswith("prime_runs."),
            }
        )
    cards = [one for one in shown if one["value"] is not None and not one["is_internal"]]
    cards = cards[:MAX_CARDS]
    return {
        "cards": cards,
        "more_metrics": [one for one in shown if one not in cards],
        "hidden_metrics": max(0, len(ordered) - MAX_METRICS),
    }


def number_of(value: Any) -> float | None:
    """A number of a mapping of metrics; a bool is none."""
    return None if isinstance(value, (bool, type(None))) else number(value)


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in metrics.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _short(value: Any) -> str:
    text = as_text(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"


def _prefect(known: Mapping[str, Any]) -> dict[str, str] | None:
    """Where the evaluation came from; None where nobody said."""
    if not known:
        return None
    texts = {name: as_text(value) for name, value in known.items() if value is not None}
    return {
        "url": safe_url(known.get("flow_run_url")) or "",
        **{
            name: texts.get(name, "")
            for name in ("flow_run_id", "flow_run_name", "deployment_id", "attempt")
        },
    }


#: What never came so far as a sink.
_LOST = {
    "rejected": "rejected: they have no JSON form",
    "dropped": "dropped: the spool could not be written",
    "torn": "torn in the spool",
}


def _losses(known: Mapping[str, Any]) -> dict[str, Any]:
    """What was lost: ``rows`` of (where, what, how many), and whether the flow run's end was
    waited out in vain.
    """
    rows = [
        (sink, kind, count)
        for sink, kinds in mapping(known.get("losses")).items()
        for kind, count in mapping(kinds).items()
        if number(count)
    ]
    rows += [
        ("records", what, count)
        for name, what in _LOST.items()
        if (count := number(known.get(name)))
    ]
    return {"rows": rows, "are_undelivered": known.get("undelivered") is True}


def _related(
    platform: Platform, connection: sqlite3.Connection, evaluation: Mapping[str, Any]
) -> dict[str, Any]:
    before = pages_listing.predecessor(connection, evaluation["tags"])
    after = pages_listing.successors(connection, evaluation["id"])
    return {
        "predecessor": None if before is None else summary(platform, before),
        "successors": [summary(platform, row) for row in after],
    }


def _examples(rollouts: Rollouts, given: Mapping[str, str]) -> dict[str, Any]:
    page = page_number(given.get("examples"))
    total, shown, cells = rollouts.examples(page)
    return {
        "examples": shown,
        "cells": cells,
        "columns": max((len(row) for row in cells.values()), default=1),
        "examples_total": total,
        "examples_page": page,
        "examples_pages": -(-total // EXAMPLES),
    }


def _table(rollouts: Rollouts, totals: sqlite3.Row, given: Mapping[str, str]) -> dict[str, Any]:
    sort = given.get("sort", "arrival")
    sort = sort if sort in SORTS else "arrival"
    first = "desc" if SORTS[sort][1] else "asc"
    order = given.get("order", first)
    selection = Selection(
        example=given.get("example"),
        error=given.get("error"),
        only=given.get("only"),
        low=_bound(given.get("low")),
        high=_bound(given.get("high")),
        sort=sort,
        descending=order == "desc",
    )
    count = totals["rollouts"] if selection.is_everything else rollouts.count(selection)
    pages = max(1, -(-count // PAGE))
    page = min(pages, page_number(given.get("page")))
    return {
        "selection": selection,
        "samples": rollouts.page(selection, page) if count else [],
        "selected": count,
        "page": page,
        "pages": pages,
        "first_row": (page - 1) * PAGE + 1,
        "sorts": {name: "desc" if is_largest else "asc" for name, (_, is_largest) in SORTS.items()},
    }


def _bound(value: str | None) -> float | None:
    try:
        bound = math.nan if value is None else float(value)
    except ValueError:
        return None
    return bound if math.isfinite(bound) else None


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The config as launched, and what else the metadata hold."""
    source = mapping(metadata.get("config_source"))
    text = source.get("text")
    rest = {name: value for name, value in metadata.items() if name != "config_source"}
    is_config = isinstance(text, str)
    return {
        "config": text if is_config else None,
        "config_name": as_text(source.get("filename") or source.get("format") or "config"),
        "metadata": orjson.dumps(
            rest if is_config else metadata, option=orjson.OPT_INDENT_2
        ).decode()
        if (rest if is_config else metadata)
        else None,
    }
