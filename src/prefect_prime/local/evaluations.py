"""Evaluations: create, read, update, finalize.

Status goes RUNNING → FAILED or CANCELLED by ``PUT``, or → COMPLETED by ``finalize``, and
never on from there: a status or a finalize for a closed evaluation is a 409 and changes
nothing. ``metadata`` and every other field of a ``PUT`` replaces what was there as a
whole. ``finalize`` answers PROCESSING; there are no statistics to wait for here, so the
next read says COMPLETED. Nothing is computed that the producer did not send, but counts.
"""
# ruff: noqa: S608 - SQL is put together from constants; every value is bound

import sqlite3
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

import orjson
from fastapi import APIRouter, HTTPException, Query, Response
from pydantic import BaseModel, Field, StringConstraints, model_validator

from prefect_prime.local.store import now
from prefect_prime.local.wire import (
    HTTP_CONFLICT,
    HTTP_NOT_FOUND,
    HTTP_UNPROCESSABLE,
    CurrentPlatform,
    JsonObject,
    Platform,
    json_answer,
    validated,
)

router = APIRouter(prefix="/evaluations")

#: The statuses in which an evaluation still runs; every other one is closed.
OPEN = ("PENDING", "RUNNING")
#: The longest ``error_message`` the platform takes, in characters.
MAX_ERROR_MESSAGE = 4096
#: The largest page and offset, far below what SQLite's integers hold.
MAX_PAGE = 1_000_000

#: Positions of samples count from 0 without gaps, so the last one gives the number.
SELECT = """
SELECT *, (SELECT COALESCE(MAX(position) + 1, 0) FROM samples WHERE evaluation_id = id)
    AS samples_count
FROM evaluations
"""

NonEmpty = Annotated[str, StringConstraints(min_length=1)]


class _EnvironmentReference(BaseModel):
    id: NonEmpty
    version_id: str | None = None


class _Fields(BaseModel):
    """What a producer may say about an evaluation, at creation and later."""

    environments: list[_EnvironmentReference] | None = Field(default=None, fail_fast=True)
    suite_id: str | None = None
    run_id: str | None = None
    model_name: str | None = None
    dataset: str | None = None
    framework: str | None = None
    task_type: str | None = None
    description: str | None = None
    tags: list[str] = Field(default=[], fail_fast=True)
    metadata: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    is_public: bool | None = None
    team_id: str | None = None


class _Create(_Fields):
    name: NonEmpty

    @model_validator(mode="after")
    def _says_what_is_evaluated(self) -> Self:
        if not self.environments and not self.run_id:
            raise ValueError("environments or run_id must be given")
        return self


class _Update(_Fields):
    name: NonEmpty | None = None
    status: Literal["FAILED", "CANCELLED"] | None = None
    error_message: str | None = Field(default=None, max_length=MAX_ERROR_MESSAGE)


class _Finalize(BaseModel):
    metrics: dict[str, Any] | None = None


def find(connection: sqlite3.Connection, evaluation_id: str) -> sqlite3.Row:
    """The row of one evaluation with its number of samples; 404 if there is none."""
    row: sqlite3.Row | None
    row = connection.execute(f"{SELECT} WHERE id = ?", (evaluation_id,)).fetchone()
    if row is None:
        raise HTTPException(HTTP_NOT_FOUND, f"no evaluation has the id {evaluation_id!r}")
    return row


def view(platform: Platform, row: sqlite3.Row) -> dict[str, Any]:
    """One evaluation as the API shows it; times are ISO 8601, UTC."""
    fields: dict[str, Any] = orjson.loads(row["fields"])
    return {
        "id": row["id"],
        "evaluation_id": row["id"],
        "status": row["status"],
        **fields,
        "environment_ids": [entry["id"] for entry in fields["environments"] or ()],
        "error_message": row["error_message"],
        "samples_count": row["samples_count"],
        "total_samples": row["samples_count"],
        "viewer_url": f"{platform.url}/dashboard/evaluations/{row['id']}",
        "created_at": _iso(row["created_at"]),
        "updated_at": _iso(row["updated_at"]),
        "finalized_at": _iso(row["finalized_at"]),
    }


def _iso(microseconds: int | None) -> str | None:
    if microseconds is None:
        return None
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat()


def _encoded(fields: dict[str, Any]) -> bytes:
    # A listing shows the fields two levels deeper: what it could not write is refused here.
    return orjson.dumps([[fields]])[2:-2]


def _link_environments(
    connection: sqlite3.Connection, evaluation_id: str, fields: dict[str, Any]
) -> None:
    connection.execute(
        "DELETE FROM evaluation_environments WHERE evaluation_id = ?", (evaluation_id,)
    )
    for entry in fields["environments"] or ():
        known = connection.execute("SELECT 1 FROM environments WHERE id = ?", (entry["id"],))
        if known.fetchone() is None:
            raise HTTPException(HTTP_NOT_FOUND, f"no environment has the id {entry['id']!r}")
        connection.execute(
            "INSERT OR IGNORE INTO evaluation_environments VALUES (?, ?)",
            (evaluation_id, entry["id"]),
        )


@router.post("/")
def create(platform: CurrentPlatform, body: JsonObject) -> Response:
    """A new evaluation, RUNNING."""
    fields = validated(_Create, body).model_dump()
    evaluation_id, created_at = uuid.uuid4().hex, now()
    with platform.store.write() as connection:
        _link_environments(connection, evaluation_id, fields)
        connection.execute(
            "INSERT INTO evaluations (id, status, suite_id, team_id, fields, created_at,"
            " updated_at) VALUES (?, 'RUNNING', ?, ?, ?, ?, ?)",
            (
                evaluation_id,
                fields["suite_id"],
                fields["team_id"],
                _encoded(fields),
                created_at,
                created_at,
            ),
        )
        row = find(connection, evaluation_id)
    return json_answer(view(platform, row))


@router.get("/")
def list_evaluations(
    platform: CurrentPlatform,
    *,
    environment_name: str | None = None,
    suite_id: str | None = None,
    team_id: str | None = None,
    skip: Annotated[int, Query(ge=0, le=MAX_PAGE)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> Response:
    """Evaluations, newest first. ``environment_name`` is ``name`` or ``owner/name``."""
    filters = """
    WHERE (:suite_id IS NULL OR suite_id = :suite_id)
      AND (:team_id IS NULL OR team_id = :team_id)
      AND (:environment IS NULL OR id IN (
          SELECT link.evaluation_id FROM evaluation_environments link
          JOIN environments e ON e.id = link.environment_id
          WHERE e.name = :environment OR e.owner || '/' || e.name = :environment))
    """
    values = {
        "suite_id": suite_id,
        "team_id": team_id,
        "environment": environment_name,
        "skip": skip,
        "limit": limit,
    }
    with platform.store.read() as connection:
        (total,) = connection.execute(
            f"SELECT COUNT(*) FROM evaluations {filters}", values
        ).fetchone()
        rows = connection.execute(
            f"{SELECT} {filters} ORDER BY seq DESC LIMIT :limit OFFSET :skip", values
        ).fetchall()
    evaluations = [view(platform, row) for row in rows]
    return json_answer({"evaluations": evaluations, "total": total, "skip": skip, "limit": limit})


@router.get("/{evaluation_id}")
def get(platform: CurrentPlatform, evaluation_id: str) -> Response:
    """One evaluation."""
    with platform.store.read() as connection:
        row = find(connection, evaluation_id)
    return json_answer(view(platform, row))


@router.put("/{evaluation_id}")
def update(platform: CurrentPlatform, evaluation_id: str, body: JsonObject) -> Response:
    """Replace the given fields; a status closes the evaluation."""
    change = validated(_Update, body)
    policy = platform.modes.status_updates
    given = change.model_dump(include=change.model_fields_set)
    status, message = given.pop("status", None), given.pop("error_message", None)
    if policy == "refuse" and {"status", "error_message"} & body.keys():
        raise HTTPException(HTTP_UNPROCESSABLE, "status: this platform sets it by itself")
    if policy == "ignore":
        status = message = None
    if "name" in given and given["name"] is None:
        del given["name"]
    with platform.store.write() as connection:
        row = find(connection, evaluation_id)
        if status is not None and row["status"] not in OPEN:
            raise HTTPException(HTTP_CONFLICT, f"the evaluation is {row['status']} already")
        fields = orjson.loads(row["fields"]) | given
        if "environments" in given:
            _link_environments(connection, evaluation_id, fields)
        connection.execute(
            "UPDATE evaluations SET fields = ?, suite_id = ?, team_id = ?, updated_at = ?,"
            " status = COALESCE(?, status), error_message = COALESCE(?, error_message)"
            " WHERE id = ?",
            (
                _encoded(fields),
                fields["suite_id"],
                fields["team_id"],
                now(),
                status,
                message,
                evaluation_id,
            ),
        )
        row = find(connection, evaluation_id)
    return json_answer(view(platform, row))


@router.post("/{evaluation_id}/finalize")
def finalize(platform: CurrentPlatform, evaluation_id: str, body: JsonObject) -> Response:
    """Complete the evaluation. Metrics that are given and not empty replace those stored."""
    metrics = validated(_Finalize, body).metrics
    with platform.store.write() as connection:
        row = find(connection, evaluation_id)
        if row["status"] not in OPEN:
            raise HTTPException(HTTP_CONFLICT, f"the evaluation is {row['status']} already")
        fields = orjson.loads(row["fields"])
        if metrics:
            fields["metrics"] = metrics
        moment = now()
        connection.execute(
            "UPDATE evaluations SET status = 'COMPLETED', fields = ?, updated_at = ?,"
            " finalized_at = ? WHERE id = ?",
            (_encoded(fields), moment, moment, evaluation_id),
        )
    return json_answer({"evaluation_id": evaluation_id, "status": "PROCESSING"})
