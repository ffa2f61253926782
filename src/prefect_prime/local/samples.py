"""The samples of an evaluation: appended in the order they come, never changed.

Rows are any JSON objects. A replayed request duplicates its rows, as on the real
platform; a request is stored as a whole or refused as a whole.
"""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, HTTPException, Query, Response
from pydantic import BaseModel, Field

from prefect_prime.local import pages_facts
from prefect_prime.local.evaluations import MAX_PAGE, OPEN, find
from prefect_prime.local.wire import (
    HTTP_CONFLICT,
    CurrentPlatform,
    JsonObject,
    json_answer,
    validated,
)

router = APIRouter(prefix="/evaluations/{evaluation_id}/samples")


class _Samples(BaseModel):
    # A million wrong rows are refused for the first of them.
    samples: list[dict[str, Any]] = Field(fail_fast=True)


@router.post("")
def append(platform: CurrentPlatform, evaluation_id: str, body: JsonObject) -> Response:
    """Store rows after those that are there."""
    samples = validated(_Samples, body).samples
    rows = [orjson.dumps(row) for row in samples]
    with platform.store.write() as connection:
        evaluation = find(connection, evaluation_id)
        if platform.modes.closed_samples == "refuse" and evaluation["status"] not in OPEN:
            raise HTTPException(HTTP_CONFLICT, f"the evaluation is {evaluation['status']}")
        first = evaluation["samples_count"]
        connection.executemany(
            "INSERT INTO samples (evaluation_id, position, body) VALUES (?, ?, ?)",
            ((evaluation_id, position, row) for position, row in enumerate(rows, first)),
        )
        pages_facts.add(connection, evaluation_id, first, samples)
    return json_answer({"evaluation_id": evaluation_id, "samples_added": len(rows)})


@router.get("")
def page(
    platform: CurrentPlatform,
    evaluation_id: str,
    page: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 1,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> Response:
    """Rows in the order of their arrival; pages count from 1."""
    first = (page - 1) * limit
    with platform.store.read() as connection:
        total = find(connection, evaluation_id)["samples_count"]
        bodies = connection.execute(
            "SELECT body FROM samples WHERE evaluation_id = ? AND position BETWEEN ? AND ?"
            " ORDER BY position",
            (evaluation_id, first, first + limit - 1),
        ).fetchall()
    return json_answer(
        {
            "samples": [orjson.Fragment(body) for (body,) in bodies],
            "total": total,
            "page": page,
            "limit": limit,
            "has_more": first + limit < total,
        }
    )
