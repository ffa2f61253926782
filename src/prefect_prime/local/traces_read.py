"""Traces: listing, one summary, its raw document, its nodes and calls, and deletes.

Nodes and calls are read from the stored document, so they are there as soon as the
upload is committed and never partial.
"""
# ruff: noqa: S608 - SQL is put together from constants; every value is bound

import itertools
import sqlite3
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from prime_traces import ErrorCode

from prefect_prime.local.listing import (
    Filter,
    Query,
    boolean,
    integer,
    invalid_filter,
    iso,
    number,
    read_query,
    text,
    timestamp,
)
from prefect_prime.local.wire import HTTP_NOT_FOUND, CurrentPlatform, TracesError, json_answer

router = APIRouter()

HTTP_ACCEPTED = 202
#: The orders of a listing: the parameter's value, then the SQL of the next rows and of
#: their order. The first is the order when none is asked for.
_SORTS = {
    "-created_at": ("(t.created_at, t.seq) < (?, ?)", "t.created_at DESC, t.seq DESC"),
    "created_at": ("(t.created_at, t.seq) > (?, ?)", "t.created_at, t.seq"),
}

#: What selects traces of an episode; a listing of all traces has more.
MEMBER_FILTERS = {
    "run_id": Filter(text, "t.run_id = ?"),
    "environment_id": Filter(text, "t.environment_id = ?"),
    "model_id": Filter(text, "t.model_id = ?"),
    "model_provider": Filter(text, "t.model_provider = ?"),
    "task_id": Filter(text, "t.task_id = ?"),
    "reward_min": Filter(number, "t.reward >= ?"),
    "reward_max": Filter(number, "t.reward <= ?"),
    "outcome": Filter(text, "t.outcome = ?"),
    "has_error": Filter(boolean, "t.has_error = ?"),
    "is_truncated": Filter(boolean, "t.is_truncated = ?"),
    "created_after": Filter(timestamp, "t.created_at >= ?"),
    "created_before": Filter(timestamp, "t.created_at < ?"),
}
_FILTERS = MEMBER_FILTERS | {
    "upload_id": Filter(text, "t.upload_id IN (SELECT value FROM json_each(?))", repeats=True),
    "sort": Filter(text),
}
_NODE_FILTERS = {
    "role": Filter(text, repeats=True),
    "sampled": Filter(boolean),
    "after": Filter(integer),
}
_CALL_FILTERS = {"model": Filter(text, repeats=True), "finish_reason": Filter(text, repeats=True)}
#: An equality in the context of the upload that stored the trace.
CONTEXT = Filter(
    text,
    "EXISTS (SELECT 1 FROM uploads u, json_each(u.context) entry"
    " WHERE u.id = t.upload_id AND entry.key = ? AND entry.value = ?)",
)
_SELECT = "SELECT t.*, u.context FROM traces t JOIN uploads u ON u.id = t.upload_id"


def list_page(connection: sqlite3.Connection, query: Query) -> Response:
    """One page of trace summaries, in the order that ``query`` asks for."""
    sort = query.values.get("sort", next(iter(_SORTS)))
    if sort not in _SORTS:
        raise invalid_filter(f"sort must be one of {', '.join(_SORTS)}")
    following, order = _SORTS[sort]
    rows = connection.execute(
        f"{_SELECT} WHERE {query.where} AND {following if query.after else 1}"
        f" ORDER BY {order} LIMIT ?",
        (*query.arguments, *(query.after or ()), query.limit + 1),
    ).fetchall()
    shown = rows[: query.limit]
    more = len(rows) > query.limit
    cursor = query.cursor(shown[-1]["created_at"], shown[-1]["seq"]) if more else None
    return json_answer({"items": [_summary(row) for row in shown], "next_cursor": cursor})


def _summary(row: sqlite3.Row) -> dict[str, Any]:
    same = ("trace_id", "upload_id", "episode_id", "run_id", "run_step", "environment_id")
    rest = ("task_id", "agent_name", "duration_ms", "total_tokens", "size_bytes")
    return {
        **{name: row[name] for name in (*same, *rest)},
        "created_at": iso(row["created_at"]),
        "ingested_at": iso(row["ingested_at"]),
        "model": {"provider": row["model_provider"], "id": row["model_id"]},
        "score": {"reward": row["reward"], "outcome": row["outcome"]},
        "execution": {
            "has_error": bool(row["has_error"]),
            "is_truncated": bool(row["is_truncated"]),
        },
        "context": orjson.loads(row["context"]),
    }


@router.get("/traces")
def list_traces(request: Request, platform: CurrentPlatform) -> Response:
    """Trace summaries, newest first."""
    query = read_query(request, _FILTERS, cursor=(int, int), context=CONTEXT)
    with platform.store.read() as connection:
        return list_page(connection, query)


@router.get("/traces/{trace_id}")
def get_trace(request: Request, platform: CurrentPlatform, trace_id: str) -> Response:
    """One trace's summary, or with ``raw=true`` its document as it was uploaded."""
    query = read_query(request, {"raw": Filter(boolean)}, cursor=())
    with platform.store.read() as connection:
        if query.values.get("raw"):
            return Response(_document(connection, trace_id), media_type="application/json")
        row = connection.execute(f"{_SELECT} WHERE t.trace_id = ?", (trace_id,)).fetchone()
    if row is None:
        raise _not_found(trace_id)
    return json_answer(_summary(row))


def _document(connection: sqlite3.Connection, trace_id: str) -> bytes:
    row = connection.execute(
        "SELECT document FROM trace_documents WHERE trace_id = ?", (trace_id,)
    ).fetchone()
    if row is None:
        raise _not_found(trace_id)
    return bytes(row["document"])


def _not_found(trace_id: str) -> TracesError:
    return TracesError(
        HTTP_NOT_FOUND, ErrorCode.TRACE_NOT_FOUND, f"no trace has the id {trace_id!r}"
    )


@router.get("/traces/{trace_id}/nodes")
def list_nodes(request: Request, platform: CurrentPlatform, trace_id: str) -> Response:
    """A trace's message nodes in the order of its document."""
    query = read_query(request, _NODE_FILTERS, cursor=(int,))
    if query.after and "after" in query.values:
        raise invalid_filter("after and cursor exclude each other")
    roles, sampled = query.values.get("role"), query.values.get("sampled")
    with platform.store.read() as connection:
        trace = orjson.loads(_document(connection, trace_id))
    last = query.after[0] if query.after else query.values.get("after", -1)
    nodes = [
        node
        for node in map(_node, itertools.count(), trace.get("nodes") or ())
        if node["node_idx"] > last
        and (not roles or node["message"]["role"] in roles)
        and sampled in (None, node["sampled"])
    ]
    return _page(query, nodes, "node_idx")


def _node(index: int, item: dict[str, Any]) -> dict[str, Any]:
    message = item.get("message") or {}
    texts = ("role", "reasoning_content", "tool_call_id", "name", "tool_name")
    return {
        "node_idx": index,
        "parent_idx": _as(int, item.get("parent")),
        "timestamp": _as((int, float), item.get("timestamp")),
        "sampled": item.get("sampled") is True,
        "message": {
            **{name: _as(str, message.get(name)) for name in texts},
            "content": message.get("content"),
            "tool_calls": message.get("tool_calls"),
        },
    }


@router.get("/traces/{trace_id}/calls")
def list_calls(request: Request, platform: CurrentPlatform, trace_id: str) -> Response:
    """A trace's model calls in the order of its document."""
    query = read_query(request, _CALL_FILTERS, cursor=(int,))
    models, reasons = query.values.get("model"), query.values.get("finish_reason")
    with platform.store.read() as connection:
        trace = orjson.loads(_document(connection, trace_id))
    last = query.after[0] if query.after else -1
    calls = [
        call
        for call in map(_call, itertools.count(), trace.get("calls") or ())
        if call["call_idx"] > last
        and (not models or call["model"] in models)
        and (not reasons or call["finish_reason"] in reasons)
    ]
    return _page(query, calls, "call_idx")


def _call(index: int, item: dict[str, Any]) -> dict[str, Any]:
    time = item.get("time")
    time = time if isinstance(time, dict) else {}
    return {
        "call_idx": index,
        "node_idx": _as(int, item.get("node")),
        "time_start": _as((int, float), time.get("start")),
        "time_end": _as((int, float), time.get("end")),
        **{name: _as(str, item.get(name)) for name in ("model", "endpoint", "finish_reason")},
    }


def _as(kind: type | tuple[type, ...], value: Any) -> Any:
    """``value``, or None if the producer wrote something of another type there."""
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _page(query: Query, items: list[dict[str, Any]], key: str) -> Response:
    shown = items[: query.limit]
    cursor = query.cursor(shown[-1][key]) if len(items) > query.limit else None
    return json_answer({"items": shown, "next_cursor": cursor, "partial_index": False})


@router.delete("/traces/{trace_id}")
def delete_trace(request: Request, platform: CurrentPlatform, trace_id: str) -> Response:
    """Delete one trace; its episode stays."""
    hint = Filter(timestamp, "t.created_at = ?")
    query = read_query(request, {"created_at": hint}, cursor=())
    where = f"t.trace_id = ? AND {query.where}"
    with platform.store.write() as connection:
        if not _delete(connection, where, (trace_id, *query.arguments)):
            raise _not_found(trace_id)
    return Response(status_code=HTTP_ACCEPTED)


@router.delete("/traces")
def delete_run(request: Request, platform: CurrentPlatform) -> Response:
    """Delete every trace of one run; episodes stay."""
    query = read_query(request, {"run_id": Filter(text, "t.run_id = ?")}, cursor=())
    if not query.own:
        raise invalid_filter("run_id must be given")
    with platform.store.write() as connection:
        if not _delete(connection, query.where, query.arguments):
            raise TracesError(HTTP_NOT_FOUND, ErrorCode.RUN_NOT_FOUND, "the run has no traces")
    return Response(status_code=HTTP_ACCEPTED)


def _delete(
    connection: sqlite3.Connection, where: str, arguments: list[Any] | tuple[Any, ...]
) -> bool:
    doomed = f"FROM traces t WHERE {where}"
    connection.execute(
        f"UPDATE uploads SET is_replayable = 0 WHERE id IN (SELECT t.upload_id {doomed})",
        arguments,
    )
    connection.execute(
        f"DELETE FROM trace_documents WHERE trace_id IN (SELECT t.trace_id {doomed})", arguments
    )
    deleted = connection.execute(
        f"DELETE FROM traces WHERE seq IN (SELECT t.seq {doomed})", arguments
    )
    return deleted.rowcount > 0
