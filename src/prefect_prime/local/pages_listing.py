"""The evaluations as their list shows them, and what is beside one of them."""
# ruff: noqa: S608 - SQL is put together from constants; every value is bound

import sqlite3
from collections.abc import Mapping
from typing import Any

from prefect_prime.local.evaluations import SELECT

#: Evaluations on one page of the list.
PAGE = 50
#: Values that a filter offers, and evaluations that one can be compared with.
MAX_CHOICES = 200
#: The tag of an evaluation that does again what an earlier one did; its id follows.
RETRY_OF = "retry-of:"

_FIELDS = "CAST(fields AS TEXT)"
_MODEL = f"json_extract({_FIELDS}, '$.model_name')"
#: What the gates compare an evaluation by: its flow above all.
_KIND = f"json_extract({_FIELDS}, '$.metadata.prefect.compared_by')"
_ENVIRONMENT_NAME = "CASE WHEN e.owner = '' THEN e.name ELSE e.owner || '/' || e.name END"
_TAGGED = f"EXISTS (SELECT 1 FROM json_each({_FIELDS}, '$.tags') WHERE value = {{tag}})"

#: The filters of the list, by their parameter.
_FILTERS = {
    "status": "status = :status",
    "environment": (
        "id IN (SELECT link.evaluation_id FROM evaluation_environments link"
        " JOIN environments e ON e.id = link.environment_id"
        f" WHERE {_ENVIRONMENT_NAME} = :environment)"
    ),
    "model": f"{_MODEL} = :model",
    "tag": _TAGGED.format(tag=":tag"),
    "text": (
        f"(id LIKE :text ESCAPE '!' OR json_extract({_FIELDS}, '$.name') LIKE :text ESCAPE '!'"
        f" OR json_extract({_FIELDS}, '$.description') LIKE :text ESCAPE '!'"
        " OR error_message LIKE :text ESCAPE '!'"
        f" OR EXISTS (SELECT 1 FROM json_each({_FIELDS}, '$.tags')"
        "  WHERE value LIKE :text ESCAPE '!'))"
    ),
}
FILTERS = tuple(_FILTERS)


def listed(
    connection: sqlite3.Connection, filters: Mapping[str, str], page: int
) -> tuple[int, list[sqlite3.Row]]:
    """How many evaluations the filters leave, and one page of them, the newest first."""
    where = " AND ".join(_FILTERS[name] for name in filters) or "1"
    values: dict[str, Any] = dict(filters)
    if "text" in values:
        literal = values["text"].replace("!", "!!").replace("%", "!%").replace("_", "!_")
        values["text"] = f"%{literal}%"
    (total,) = connection.execute(
        f"SELECT COUNT(*) FROM evaluations WHERE {where}", values
    ).fetchone()
    rows = connection.execute(
        f"{SELECT} WHERE {where} ORDER BY seq DESC LIMIT {PAGE} OFFSET :offset",
        {**values, "offset": (page - 1) * PAGE},
    ).fetchall()
    return total, rows


def choices(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """What the filters offer: the statuses, environments and models that there are."""
    values = {
        "status": "SELECT DISTINCT status FROM evaluations",
        "environment": (
            f"SELECT DISTINCT {_ENVIRONMENT_NAME} FROM environments e WHERE EXISTS"
            " (SELECT 1 FROM evaluation_environments link WHERE link.environment_id = e.id)"
        ),
        "model": f"SELECT DISTINCT {_MODEL} FROM evaluations WHERE {_MODEL} IS NOT NULL",
    }
    return {
        name: [
            value
            for (value,) in connection.execute(f"{sql} ORDER BY 1 LIMIT {MAX_CHOICES}").fetchall()
        ]
        for name, sql in values.items()
    }


def environments_of(connection: sqlite3.Connection, evaluation_id: str) -> list[str]:
    """The names of an evaluation's environments."""
    return [
        name
        for (name,) in connection.execute(
            f"SELECT {_ENVIRONMENT_NAME} FROM evaluation_environments link"
            " JOIN environments e ON e.id = link.environment_id"
            " WHERE link.evaluation_id = ? ORDER BY 1",
            (evaluation_id,),
        )
    ]


def predecessor(connection: sqlite3.Connection, tags: list[str]) -> sqlite3.Row | None:
    """The evaluation that one with these tags is a retry of, if it is here."""
    ids = [tag.removeprefix(RETRY_OF) for tag in tags if tag.startswith(RETRY_OF)]
    return _row(connection, ids[0]) if ids else None


def successors(connection: sqlite3.Connection, evaluation_id: str) -> list[sqlite3.Row]:
    """The evaluations that are a retry of this one, the oldest first."""
    return connection.execute(
        f"{SELECT} WHERE {_TAGGED.format(tag='?')} ORDER BY seq LIMIT {MAX_CHOICES}",
        (RETRY_OF + evaluation_id,),
    ).fetchall()


def comparable(connection: sqlite3.Connection, row: sqlite3.Row) -> list[sqlite3.Row]:
    """The other COMPLETED evaluations of the same environments; before all others those of
    the same model, of an earlier time, of the same flow, and the newest.
    """
    theirs = "SELECT environment_id FROM evaluation_environments WHERE evaluation_id = {}"
    this, other = theirs.format(":id"), theirs.format("evaluations.id")
    return connection.execute(
        f"{SELECT} WHERE status = 'COMPLETED' AND id != :id"
        f" AND NOT EXISTS ({this} EXCEPT {other}) AND NOT EXISTS ({other} EXCEPT {this})"
        f" ORDER BY {_MODEL} IS (SELECT {_MODEL} FROM evaluations WHERE id = :id) DESC,"
        f" seq < :seq DESC, {_KIND} IS (SELECT {_KIND} FROM evaluations WHERE id = :id) DESC,"
        f" seq DESC LIMIT {MAX_CHOICES}",
        {"id": row["id"], "seq": row["seq"]},
    ).fetchall()


def _row(connection: sqlite3.Connection, evaluation_id: str) -> sqlite3.Row | None:
    row: sqlite3.Row | None
    row = connection.execute(f"{SELECT} WHERE id = ?", (evaluation_id,)).fetchone()
    return row
