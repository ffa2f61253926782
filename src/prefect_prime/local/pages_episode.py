"""One episode, found among the samples or the traces.

A sample holds its whole episode (``info.native_wrapper``); one that was too large for that
is one row per trace; a v0 row is a conversation without an episode; an episode that was
never a sample is in the tables of Prime Traces. All four become a record and its traces.
"""
# ruff: noqa: S608 - SQL is put together from constants; every value is bound

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from prefect_prime.local.pages_conversation import mappings
from prefect_prime.local.pages_facts import as_messages, mapping

#: Rows of one episode that are put together.
MAX_ROWS = 50


@dataclass(frozen=True)
class Found:
    """An episode in one of its forms: traces, or rows of which each stands for one.

    ``position`` is that of its sample, ``body`` its JSON.
    """

    record: Mapping[str, Any]
    traces: list[Mapping[str, Any]]
    body: bytes
    position: int | None = None


def of_sample(connection: sqlite3.Connection, evaluation_id: str, position: int) -> Found | None:
    """The episode that the sample at ``position`` belongs to."""
    row = connection.execute(
        "SELECT body FROM samples WHERE evaluation_id = ? AND position = ?",
        (evaluation_id, position),
    ).fetchone()
    if row is None:
        return None
    sample = orjson.loads(row["body"])
    wrapper = mapping(mapping(sample.get("info")).get("native_wrapper"))
    traces = wrapper.get("traces")
    if isinstance(traces, list):
        return Found(wrapper, mappings(traces), row["body"], position)
    rows = [sample]
    episode_id = sample.get("episode_id")
    if isinstance(episode_id, str) and episode_id != sample.get("sample_id"):
        rows = _rows_of(connection, evaluation_id, episode_id)
    record = {"id": episode_id or sample.get("sample_id"), "task": {"data": sample.get("task")}}
    return Found(record, [_as_trace(each) for each in rows], row["body"], position)


def of_id(connection: sqlite3.Connection, evaluation_id: str, episode_id: str) -> Found | None:
    """The episode, or bare trace, of that id; a sample of it before what the traces have."""
    row = connection.execute(
        "SELECT MIN(position) FROM sample_facts WHERE evaluation_id = ? AND episode_id = ?",
        (evaluation_id, episode_id),
    ).fetchone()
    if row[0] is not None:
        return of_sample(connection, evaluation_id, row[0])
    episode = connection.execute(
        "SELECT envelope FROM episodes WHERE episode_id = ? AND"
        " COALESCE(run_id, json_extract(CAST(envelope AS TEXT), '$.run.id')) = ?",
        (episode_id, evaluation_id),
    ).fetchone()
    where = "t.episode_id = ?1" if episode else "t.trace_id = ?1 AND t.episode_id IS NULL"
    documents = [
        document
        for (document,) in connection.execute(
            "SELECT d.document FROM traces t JOIN trace_documents d ON d.trace_id = t.trace_id"
            f" WHERE {where} AND t.run_id = ?2 ORDER BY t.seq",
            (episode_id, evaluation_id),
        )
    ]
    traces = [orjson.loads(document) for document in documents]
    if episode is None:
        return Found(traces[0], traces, documents[0]) if traces else None
    envelope = orjson.loads(episode["envelope"])
    body = orjson.dumps({**envelope, "traces": [orjson.Fragment(each) for each in documents]})
    return Found(envelope, traces, body)


def _rows_of(
    connection: sqlite3.Connection, evaluation_id: str, episode_id: str
) -> list[dict[str, Any]]:
    bodies = connection.execute(
        "SELECT body FROM samples WHERE evaluation_id = :evaluation AND position IN"
        " (SELECT position FROM sample_facts WHERE evaluation_id = :evaluation"
        f"  AND episode_id = :episode ORDER BY position LIMIT {MAX_ROWS}) ORDER BY position",
        {"evaluation": evaluation_id, "episode": episode_id},
    )
    return [orjson.loads(body) for (body,) in bodies]


def _as_trace(row: Mapping[str, Any]) -> dict[str, Any]:
    """A sample row in the form of a trace; its conversation in the form of a tree."""
    error = row.get("error")
    paths = [
        messages
        for entry in mappings(row.get("trajectory"))
        if (messages := mappings(entry.get("messages")))
    ]
    if not paths:
        paths = [
            [
                *as_messages(row.get("prompt"), "user"),
                *as_messages(row.get("completion"), "assistant"),
            ]
        ]
    return {
        "agent": {"name": row.get("agent"), "trainable": row.get("trainable")},
        "row_reward": row.get("reward"),
        "metrics": row.get("metrics"),
        "stop_condition": row.get("stop_condition"),
        "is_truncated": row.get("is_truncated"),
        "errors": [error] if error else [],
        "timing": row.get("timing"),
        "usage": row.get("token_usage"),
        "tools": row.get("tool_defs"),
        "nodes": _tree(paths),
    }


def _tree(paths: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Nodes of conversations that may begin with the same messages."""
    nodes: list[dict[str, Any]] = []
    known: dict[tuple[int | None, bytes], int] = {}
    for path in paths:
        parent: int | None = None
        for message in path:
            step = (parent, orjson.dumps(message))
            if step not in known:
                known[step] = len(nodes)
                nodes.append({"parent": parent, "message": message})
            parent = known[step]
    return nodes
