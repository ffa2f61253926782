"""Runs: totals over the traces that carry one ``run.id``, computed when read.

There is no run of its own in the store: one without traces does not exist. Its type is
the ``run_type`` of its newest trace's upload, and this platform has one uploader.
"""
# ruff: noqa: S608 - SQL is put together from constants; every value is bound

import sqlite3
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from prime_traces import ErrorCode

from prefect_prime.local.episodes_read import names
from prefect_prime.local.listing import Filter, iso, read_query, text, timestamp
from prefect_prime.local.wire import HTTP_NOT_FOUND, CurrentPlatform, TracesError, json_answer

router = APIRouter(prefix="/runs")

#: The one user: whoever holds the platform's key.
USER_ID = "local"

_FILTERS = {
    "run_type": Filter(text, repeats=True),
    "created_by": Filter(text, repeats=True),
    "created_after": Filter(timestamp, "t.created_at >= ?"),
    "created_before": Filter(timestamp, "t.created_at < ?"),
}
_TOTALS = """
SELECT t.run_id,
    MIN(t.created_at) AS first_created, MAX(t.created_at) AS last_created,
    MAX(t.ingested_at) AS last_ingested,
    COUNT(*) AS trace_count, COUNT(DISTINCT t.episode_id) AS episode_count,
    AVG(t.reward) AS avg_reward,
    MIN(t.run_step) AS step_min, MAX(t.run_step) AS step_max,
    COUNT(DISTINCT t.run_step) AS step_count,
    MAX(t.has_error) AS has_error,
    json_group_array(DISTINCT t.environment_id) AS environment_ids,
    json_group_array(DISTINCT t.model_id) AS model_ids,
    (SELECT u.context FROM traces newest JOIN uploads u ON u.id = newest.upload_id
     WHERE newest.run_id = t.run_id
     ORDER BY newest.created_at DESC, newest.seq DESC LIMIT 1) AS context
FROM traces t WHERE {where} AND t.run_id IS NOT NULL GROUP BY t.run_id
"""
_RUN_TYPE = """
CASE WHEN json_extract(context, '$.run_type') IN ('eval', 'train')
    THEN json_extract(context, '$.run_type') ELSE 'unknown' END
"""


@router.get("")
def list_runs(request: Request, platform: CurrentPlatform) -> Response:
    """Runs, most recently ingested first."""
    query = read_query(request, _FILTERS, cursor=(int, str))
    types = query.values.get("run_type")
    if USER_ID not in query.values.get("created_by", [USER_ID]):
        return json_answer({"items": [], "next_cursor": None})
    following = "(last_ingested, run_id) < (?, ?)" if query.after else "1"
    typed = f"{_RUN_TYPE} IN (SELECT value FROM json_each(?))" if types else "1"
    with platform.store.read() as connection:
        rows = connection.execute(
            f"SELECT * FROM ({_TOTALS.format(where=query.where)})"
            f" WHERE {typed} AND {following}"
            " ORDER BY last_ingested DESC, run_id DESC LIMIT ?",
            (
                *query.arguments,
                *([orjson.dumps(types).decode()] if types else ()),
                *(query.after or ()),
                query.limit + 1,
            ),
        ).fetchall()
    shown = rows[: query.limit]
    more = len(rows) > query.limit
    cursor = query.cursor(shown[-1]["last_ingested"], shown[-1]["run_id"]) if more else None
    return json_answer({"items": [_summary(row) for row in shown], "next_cursor": cursor})


def _summary(row: sqlite3.Row) -> dict[str, Any]:
    same = ("run_id", "trace_count", "episode_count", "avg_reward")
    steps = ("step_min", "step_max", "step_count")
    return {
        **{name: row[name] for name in (*same, *steps)},
        "first_trace_created_at": iso(row["first_created"]),
        "last_trace_created_at": iso(row["last_created"]),
        "last_trace_ingested_at": iso(row["last_ingested"]),
        "has_error": bool(row["has_error"]),
        "first_user_id": USER_ID,
        "environment_ids": names(row["environment_ids"]),
        "model_ids": names(row["model_ids"]),
        "context": orjson.loads(row["context"]),
    }


@router.get("/{run_id}")
def get_run(request: Request, platform: CurrentPlatform, run_id: str) -> Response:
    """One run's totals."""
    read_query(request, {}, cursor=())
    with platform.store.read() as connection:
        row = connection.execute(_TOTALS.format(where="t.run_id = ?"), (run_id,)).fetchone()
    if row is None:
        raise TracesError(
            HTTP_NOT_FOUND, ErrorCode.RUN_NOT_FOUND, f"the run {run_id!r} has no traces"
        )
    return json_answer(_summary(row))


@router.get("/{run_id}/steps")
def list_run_steps(request: Request, platform: CurrentPlatform, run_id: str) -> Response:
    """A run's training steps, oldest first; none for an unknown run."""
    read_query(request, {}, cursor=())
    with platform.store.read() as connection:
        items = _steps(connection, run_id)
    return json_answer(
        {
            "step_min": items[0]["step"] if items else None,
            "step_max": items[-1]["step"] if items else None,
            "step_count": len(items),
            "items": items,
        }
    )


def _steps(connection: sqlite3.Connection, run_id: str) -> list[dict[str, Any]]:
    rows = connection.execute(
        "SELECT run_step AS step, COUNT(*) AS trace_count,"
        " COUNT(DISTINCT episode_id) AS episode_count, AVG(reward) AS avg_reward"
        " FROM traces WHERE run_id = ? AND run_step IS NOT NULL"
        " GROUP BY run_step ORDER BY run_step",
        (run_id,),
    )
    return [dict(row) for row in rows]
