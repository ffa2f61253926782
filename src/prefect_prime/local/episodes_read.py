"""Episodes: listing, one with the sums over its traces, its envelope, its member traces.

An episode belongs to the run of its traces. Steps and the upload's context are its
traces' too: an episode without traces matches no filter on them.
"""
# ruff: noqa: S608 - SQL is put together from constants; every value is bound

import dataclasses
import sqlite3
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from prime_traces import ErrorCode

from prefect_prime.local.listing import (
    Filter,
    boolean,
    integer,
    iso,
    read_query,
    text,
    timestamp,
)
from prefect_prime.local.traces_read import CONTEXT, MEMBER_FILTERS, list_page
from prefect_prime.local.wire import HTTP_NOT_FOUND, CurrentPlatform, TracesError, json_answer

router = APIRouter(prefix="/episodes")

_FILTERS = {
    "run_id": Filter(text, "e.run_id = ?"),
    "upload_id": Filter(text, "e.upload_id IN (SELECT value FROM json_each(?))", repeats=True),
    "environment_id": Filter(text, "e.environment_id = ?"),
    "outcome": Filter(text, "e.outcome = ?"),
    "has_error": Filter(boolean, "e.has_error = ?"),
    "run_step": Filter(integer, "t.run_step = ?", of_member=True),
    "step_min": Filter(integer, "t.run_step >= ?", of_member=True),
    "step_max": Filter(integer, "t.run_step <= ?", of_member=True),
    "created_after": Filter(timestamp, "e.created_at >= ?"),
    "created_before": Filter(timestamp, "e.created_at < ?"),
}


@router.get("")
def list_episodes(request: Request, platform: CurrentPlatform) -> Response:
    """Episode summaries, newest first."""
    context = dataclasses.replace(CONTEXT, of_member=True)
    query = read_query(request, _FILTERS, cursor=(int, int), context=context)
    following = "(e.created_at, e.seq) < (?, ?)" if query.after else "1"
    with platform.store.read() as connection:
        rows = connection.execute(
            f"SELECT e.* FROM episodes e WHERE {query.where} AND {following}"
            " ORDER BY e.created_at DESC, e.seq DESC LIMIT ?",
            (*query.arguments, *(query.after or ()), query.limit + 1),
        ).fetchall()
    shown = rows[: query.limit]
    more = len(rows) > query.limit
    cursor = query.cursor(shown[-1]["created_at"], shown[-1]["seq"]) if more else None
    return json_answer({"items": [_summary(row) for row in shown], "next_cursor": cursor})


def _summary(row: sqlite3.Row) -> dict[str, Any]:
    same = ("episode_id", "upload_id", "schema_version", "run_id", "environment_id", "outcome")
    return {
        **{name: row[name] for name in same},
        "created_at": iso(row["created_at"]),
        "ingested_at": iso(row["ingested_at"]),
        "has_error": bool(row["has_error"]),
        "error": {"type": row["error_type"], "message": row["error_message"]},
    }


@router.get("/{episode_id}")
def get_episode(request: Request, platform: CurrentPlatform, episode_id: str) -> Response:
    """One episode with the sums over its traces, or with ``raw=true`` its envelope."""
    query = read_query(request, {"raw": Filter(boolean)}, cursor=())
    with platform.store.read() as connection:
        row = _find(connection, episode_id)
        if query.values.get("raw"):
            return Response(row["envelope"], media_type="application/json")
        sums = connection.execute(
            # TOTAL, unlike SUM, cannot overflow: the cast ends at the largest integer.
            "SELECT COUNT(*) AS trace_count, CAST(TOTAL(total_tokens) AS INTEGER) AS total_tokens,"
            " COALESCE(SUM(duration_ms), 0) AS total_duration_ms,"
            " COALESCE(MAX(has_error), 0) AS any_trace_error,"
            " json_group_array(DISTINCT agent_name) AS agent_names"
            " FROM traces WHERE episode_id = ?",
            (episode_id,),
        ).fetchone()
    members = {
        **dict(sums),
        "any_trace_error": bool(sums["any_trace_error"]),
        "agent_names": names(sums["agent_names"]),
    }
    return json_answer({**_summary(row), "traces": members})


def names(array: str) -> list[str]:
    """A JSON array of names from SQLite, sorted, without its null."""
    return sorted(name for name in orjson.loads(array) if name is not None)


def _find(connection: sqlite3.Connection, episode_id: str) -> sqlite3.Row:
    row: sqlite3.Row | None = connection.execute(
        "SELECT * FROM episodes WHERE episode_id = ?", (episode_id,)
    ).fetchone()
    if row is None:
        raise TracesError(
            HTTP_NOT_FOUND, ErrorCode.EPISODE_NOT_FOUND, f"no episode has the id {episode_id!r}"
        )
    return row


@router.get("/{episode_id}/traces")
def list_episode_traces(request: Request, platform: CurrentPlatform, episode_id: str) -> Response:
    """The summaries of an episode's traces, newest first."""
    query = read_query(request, MEMBER_FILTERS, cursor=(int, int), context=CONTEXT)
    query.add(Filter(text, "t.episode_id = ?"), episode_id)
    with platform.store.read() as connection:
        _find(connection, episode_id)
        return list_page(connection, query)
