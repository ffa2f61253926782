"""The environments hub: environments by name, by id, and published by ``owner/name``.

A name without an owner is made when it is first asked for, once per team. ``owner/name``
must have been published (``LocalPlatform.publish_environment``), else 404.
"""

import sqlite3
import uuid
from typing import Annotated

from fastapi import APIRouter, HTTPException, Response
from pydantic import BaseModel, StringConstraints

from prefect_prime.local.store import Store
from prefect_prime.local.wire import (
    HTTP_NOT_FOUND,
    CurrentPlatform,
    JsonObject,
    json_answer,
    validated,
)

router = APIRouter(prefix="/environmentshub")

Name = Annotated[str, StringConstraints(min_length=1)]


class _Resolve(BaseModel):
    name: Name
    team_id: str | None = None


class _Lookup(BaseModel):
    id: Name


def get_or_create(connection: sqlite3.Connection, team_id: str, owner: str, name: str) -> str:
    """The id of one environment, made if it was not there. ``owner`` is "" for own names."""
    connection.execute(
        "INSERT OR IGNORE INTO environments (id, team_id, owner, name) VALUES (?, ?, ?, ?)",
        (uuid.uuid4().hex, team_id, owner, name),
    )
    (environment_id,) = connection.execute(
        "SELECT id FROM environments WHERE team_id = ? AND owner = ? AND name = ?",
        (team_id, owner, name),
    ).fetchone()
    return str(environment_id)


def publish(store: Store, slug: str) -> str:
    """The id of ``owner/name``, findable from now on. ``ValueError`` for another form."""
    owner, _, name = slug.partition("/")
    if not owner or not name or "/" in name or "@" in name:
        raise ValueError(f"{slug!r} is not of the form 'owner/name'.")
    with store.write() as connection:
        return get_or_create(connection, "", owner, name)


@router.post("/resolve")
def resolve(platform: CurrentPlatform, body: JsonObject) -> Response:
    """Get or create by name."""
    wanted = validated(_Resolve, body)
    if "/" in wanted.name:
        raise HTTPException(
            HTTP_NOT_FOUND,
            f"environment {wanted.name!r} has an owner: look it up as published",
        )
    with platform.store.write() as connection:
        environment_id = get_or_create(connection, wanted.team_id or "", "", wanted.name)
    return json_answer({"data": {"id": environment_id, "name": wanted.name}})


@router.post("/lookup")
def lookup(platform: CurrentPlatform, body: JsonObject) -> Response:
    """An environment by its id."""
    wanted = validated(_Lookup, body)
    with platform.store.read() as connection:
        row = connection.execute(
            "SELECT id, owner, name FROM environments WHERE id = ?", (wanted.id,)
        ).fetchone()
    if row is None:
        raise HTTPException(HTTP_NOT_FOUND, f"no environment has the id {wanted.id!r}")
    return json_answer({"data": dict(row)})


@router.get("/{owner}/{name}/@latest")
def latest(platform: CurrentPlatform, owner: str, name: str) -> Response:
    """A published environment."""
    with platform.store.read() as connection:
        row = connection.execute(
            "SELECT id, owner, name FROM environments WHERE owner = ? AND name = ?", (owner, name)
        ).fetchone()
    if row is None:
        raise HTTPException(HTTP_NOT_FOUND, f"environment {owner}/{name} is not published")
    return json_answer({"data": dict(row)})
