"""``POST /traces``: one request is stored as a whole, once, or refused as a whole.

The upload's id is the digest of its lines. Known bytes get their receipt again and store
nothing, unless something of them was deleted since: then they are stored anew. The same
bytes under another line format are a 409.
"""
# ruff: noqa: S608 - SQL is put together from constants; every value is bound

import sqlite3
from collections.abc import Sequence
from typing import Annotated

import orjson
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from prime_traces import ErrorCode, LineFormat

from prefect_prime.local.store import now
from prefect_prime.local.traces_lines import EpisodeRow, TraceRow, Upload, read_lines
from prefect_prime.local.traces_request import (
    SUPPORTED_SCHEMA_VERSION,
    TracesRequest,
    read_request,
)
from prefect_prime.local.wire import (
    HTTP_CONFLICT,
    HTTP_TOO_LARGE,
    CurrentPlatform,
    Platform,
    TracesError,
    json_answer,
    read_body,
    rejected,
)

router = APIRouter()


def _upsert(table: str, key: str, columns: Sequence[str], on_replace: str = "") -> str:
    kept = ", ".join(f"{name} = excluded.{name}" for name in columns if name != key)
    places = ", ".join("?" * len(columns))
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"
        f" ON CONFLICT ({key}) DO UPDATE SET {kept}{on_replace}"
    )


_PUT_TRACE = _upsert(
    "traces",
    "trace_id",
    (*TraceRow._fields, "upload_id", "ingested_at"),
    ", generation = generation + 1",
)
_PUT_DOCUMENT = _upsert("trace_documents", "trace_id", ("trace_id", "document"))
_PUT_EPISODE = _upsert(
    "episodes",
    "episode_id",
    (*EpisodeRow._fields, "upload_id", "ingested_at", "schema_version"),
)


async def _body(request: Request, platform: CurrentPlatform) -> bytes:
    limit = platform.limits.traces_body
    body = await read_body(request, limit)
    if body is None:
        # A gateway's answer: it knows no codes of the service behind it.
        raise HTTPException(HTTP_TOO_LARGE, f"the request is over {limit} bytes")
    return body


@router.post("/traces")
def upload(
    request: Request, platform: CurrentPlatform, body: Annotated[bytes, Depends(_body)]
) -> Response:
    """Store the lines of one request; the receipt means that all of them are durable."""
    wanted = read_request(request.headers, body, platform.limits)
    receipt = {"upload_id": wanted.upload_id, "status": "committed"}
    with platform.store.read() as connection:
        if _is_stored(connection, wanted):
            return json_answer(receipt)
    arrival = now()
    rows = read_lines(wanted.lines, wanted.line_format, arrival, platform.limits)
    with platform.store.write() as connection:
        if not _is_stored(connection, wanted):
            _check_against_stored(connection, platform, rows, wanted.line_format)
            _store(connection, wanted, rows, arrival)
    return json_answer(receipt)


def _is_stored(connection: sqlite3.Connection, wanted: TracesRequest) -> bool:
    known = connection.execute(
        "SELECT line_format, is_replayable FROM uploads WHERE id = ?", (wanted.upload_id,)
    ).fetchone()
    if known is None:
        return False
    if known["line_format"] != wanted.line_format.value:
        raise TracesError(
            HTTP_CONFLICT,
            ErrorCode.LINE_FORMAT_CONFLICT,
            f"these bytes were uploaded with the line format {known['line_format']!r}",
        )
    return bool(known["is_replayable"])


def _check_against_stored(
    connection: sqlite3.Connection, platform: Platform, rows: Upload, line_format: LineFormat
) -> None:
    trace_ids = [row.trace_id for row in rows.traces]
    episode_ids = [row.episode_id for row in rows.episodes]
    if platform.modes.duplicate_traces == "refuse":
        if stored := _stored(connection, "traces", "trace_id", trace_ids):
            raise rejected(ErrorCode.DUPLICATE_TRACE_ID, f"trace {min(stored)!r} is stored already")
        if stored := _stored(connection, "episodes", "episode_id", episode_ids):
            raise rejected(
                ErrorCode.DUPLICATE_EPISODE_ID, f"episode {min(stored)!r} is stored already"
            )
    if line_format is LineFormat.TRACE:
        named = {row.episode_id for row in rows.traces if row.episode_id is not None}
        if unknown := named - _stored(connection, "episodes", "episode_id", sorted(named)):
            raise rejected(
                ErrorCode.UNKNOWN_EPISODE_REFERENCE, f"episode {min(unknown)!r} is not stored"
            )


def _stored(connection: sqlite3.Connection, table: str, column: str, ids: list[str]) -> set[str]:
    return {
        identifier
        for (identifier,) in connection.execute(
            f"SELECT {column} FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))",
            (orjson.dumps(ids).decode(),),
        )
    }


def _store(
    connection: sqlite3.Connection, wanted: TracesRequest, rows: Upload, arrival: int
) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO uploads (id, line_format, context, ingested_at, is_replayable)"
        " VALUES (?, ?, ?, ?, 1)",
        (
            wanted.upload_id,
            wanted.line_format.value,
            orjson.dumps(wanted.context).decode(),
            arrival,
        ),
    )
    connection.executemany(_PUT_TRACE, ((*row, wanted.upload_id, arrival) for row in rows.traces))
    connection.executemany(
        _PUT_DOCUMENT,
        (
            (row.trace_id, document)
            for row, document in zip(rows.traces, rows.documents, strict=True)
        ),
    )
    connection.executemany(
        _PUT_EPISODE,
        ((*row, wanted.upload_id, arrival, SUPPORTED_SCHEMA_VERSION) for row in rows.episodes),
    )
