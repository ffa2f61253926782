"""``GET /runs/{run_id}/search``: literal, case-sensitive matches in a run's messages.

At most one match per node and field, in the order of arrival. Documents are read one by
one, so a search holds one trace in memory whatever the run's size, and nothing waits to
be indexed.
"""
# ruff: noqa: S608 - SQL is put together from constants; every value is bound

from collections.abc import Iterator
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from prefect_prime.local.listing import (
    Filter,
    boolean,
    integer,
    invalid_filter,
    number,
    read_query,
    text,
)
from prefect_prime.local.wire import CurrentPlatform, json_answer

router = APIRouter()

#: The shortest query, in characters.
MIN_QUERY = 3
#: Matches on a page when no limit is asked for.
DEFAULT_LIMIT = 50
#: Characters of context on either side of a match.
_CONTEXT = 80

_FIELDS = ("content", "reasoning_content", "tool_calls")
_FILTERS = {
    "query": Filter(text),
    "field": Filter(text),
    "role": Filter(text),
    "run_step": Filter(integer, "t.run_step = ?"),
    "has_error": Filter(boolean, "t.has_error = ?"),
    "reward_min": Filter(number, "t.reward >= ?"),
    "reward_max": Filter(number, "t.reward <= ?"),
}


@router.get("/runs/{run_id}/search")
def search(request: Request, platform: CurrentPlatform, run_id: str) -> Response:
    """One page of matches; the first page says how many traces the search covers."""
    query = read_query(request, _FILTERS, cursor=(int, int), default_limit=DEFAULT_LIMIT)
    wanted = query.values.get("query", "")
    if len(wanted) < MIN_QUERY:
        raise invalid_filter(f"query needs at least {MIN_QUERY} characters")
    name = query.values.get("field", "content")
    if name not in _FIELDS:
        raise invalid_filter(f"field must be one of {', '.join(_FIELDS)}")
    first_trace, last_node = query.after or (0, -1)
    where = f"t.run_id = ? AND {query.where}"
    arguments = (run_id, *query.arguments)
    found: list[tuple[int, dict[str, Any]]] = []
    with platform.store.read() as connection:
        (examined,) = connection.execute(
            f"SELECT COUNT(*) FROM traces t WHERE {where}", arguments
        ).fetchone()
        for row in connection.execute(
            "SELECT t.seq, t.trace_id, t.upload_id, t.generation, t.episode_id, d.document"
            " FROM traces t JOIN trace_documents d ON d.trace_id = t.trace_id"
            f" WHERE {where} AND t.seq >= ? ORDER BY t.seq",
            (*arguments, first_trace),
        ):
            about = {key: row[key] for key in ("trace_id", "upload_id", "generation", "episode_id")}
            skip = last_node if row["seq"] == first_trace else -1
            role = query.values.get("role")
            found.extend(
                (row["seq"], about | match)
                for match in _matches(row["document"], wanted, name, role, skip)
            )
            if len(found) > query.limit:
                break
    shown = found[: query.limit]
    more = len(found) > query.limit
    answer: dict[str, Any] = {
        "items": [match for _, match in shown],
        "next_cursor": query.cursor(shown[-1][0], shown[-1][1]["node_idx"]) if more else None,
    }
    if query.after is None:
        answer["coverage"] = {
            "examined_traces": examined,
            "unindexed_trace_ids": [],
            "partial_index": False,
        }
    return json_answer(answer)


def _matches(
    document: bytes, wanted: str, name: str, role: str | None, skip: int
) -> Iterator[dict[str, Any]]:
    for index, node in enumerate(orjson.loads(document).get("nodes") or ()):
        message = node.get("message") or {}
        value = message.get(name)
        if index <= skip or value is None or (role is not None and message.get("role") != role):
            continue
        is_text = isinstance(value, str)
        searched = value if is_text else orjson.dumps(value).decode()
        start = searched.find(wanted)
        if start < 0:
            continue
        end = start + len(wanted)
        excerpt_start = max(0, start - _CONTEXT)
        yield {
            "node_idx": index,
            "role": str(message.get("role") or ""),
            "field": name,
            "representation": "text" if is_text else "json",
            "match_start": start,
            "match_end": end,
            "excerpt": searched[excerpt_start : end + _CONTEXT],
            "excerpt_start": excerpt_start,
        }
