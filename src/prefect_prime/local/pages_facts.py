"""What the pages need to know of every sample: one narrow row each, in ``sample_facts``.

A sample's body is a whole episode, often kilobytes. A table of 100,000 of them sorts,
filters, pages and aggregates in SQL over these rows, and a body is read for the one
episode that somebody opens. The facts are derived: they are written with the samples, and
those of a directory that has none yet are caught up with when its page is first opened.
A row may be any JSON object, so nothing here takes a type for granted.
"""
# ruff: noqa: S608 - SQL is put together from constants; every value is bound

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from prefect_prime.encoding import number
from prefect_prime.local.rules import MAX_INTEGER
from prefect_prime.local.store import Store

#: Characters of a message that a table shows.
MAX_PREVIEW = 160
#: Characters of an error's message that a table shows.
MAX_MESSAGE = 2_000
#: Samples that are caught up with in one transaction.
CHUNK = 1_000


class SampleFacts(NamedTuple):
    """The columns of one sample, after its evaluation and position."""

    episode_id: str | None
    example: int | str | None
    rollout: int | None
    reward: float | None
    error_type: str | None
    error_message: str | None
    stop_condition: str | None
    truncated: bool
    tokens: int | None
    duration_ms: int | None
    input: str
    target: str
    reply: str


_INSERT = (
    f"INSERT OR IGNORE INTO sample_facts VALUES ({', '.join('?' * (2 + len(SampleFacts._fields)))})"
)


def add(
    connection: sqlite3.Connection, evaluation_id: str, first: int, rows: Iterable[dict[str, Any]]
) -> None:
    """Note ``rows``, stored from position ``first`` on."""
    connection.executemany(
        _INSERT,
        ((evaluation_id, position, *facts(row)) for position, row in enumerate(rows, first)),
    )


def catch_up(store: Store, evaluation_id: str) -> None:
    """Note the samples of ``evaluation_id`` that were stored without their facts."""
    while (start := _first_unknown(store, evaluation_id)) is not None:
        with store.write() as connection:
            bodies = connection.execute(
                "SELECT body FROM samples WHERE evaluation_id = ? AND position BETWEEN ? AND ?"
                " ORDER BY position",
                (evaluation_id, start, start + CHUNK - 1),
            ).fetchall()
            add(connection, evaluation_id, start, [orjson.loads(body) for (body,) in bodies])


def _first_unknown(store: Store, evaluation_id: str) -> int | None:
    with store.read() as connection:
        known, stored = (
            connection.execute(
                f"SELECT COALESCE(MAX(position) + 1, 0) FROM {table} WHERE evaluation_id = ?",
                (evaluation_id,),
            ).fetchone()[0]
            for table in ("sample_facts", "samples")
        )
    return known if known < stored else None


def facts(row: Mapping[str, Any]) -> SampleFacts:
    """What a table shows of ``row``."""
    messages = [*as_messages(row.get("prompt"), "user")]
    replies = [*as_messages(row.get("completion"), "assistant")]
    error = error_of(row)
    task = mapping(row.get("task"))
    return SampleFacts(
        episode_id=_text(row.get("episode_id")) or _text(row.get("sample_id")),
        example=_example(row.get("example_id")),
        rollout=integer(row.get("rollout_number")),
        reward=number(row.get("reward")),
        error_type=None if error is None else error[0],
        error_message=None if error is None else error[1][:MAX_MESSAGE],
        stop_condition=_text(row.get("stop_condition")),
        truncated=row.get("is_truncated") is True,
        tokens=_tokens(row.get("token_usage")),
        duration_ms=duration_ms(row.get("timing")),
        input=_preview(messages + replies, "user") or _short(task.get("prompt")),
        target=_short(row.get("answer")),
        reply=_preview(replies[::-1], "assistant"),
    )


def as_messages(value: Any, role: str) -> Iterator[dict[str, Any]]:
    """The messages of a v0 or v1 conversation; a bare text is one of ``role``."""
    if isinstance(value, str):
        yield {"role": role, "content": value}
    elif isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def error_of(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """Type and message of what failed a sample: its own error, else its episode's last."""
    error = row.get("error")
    wrapper = mapping(mapping(row.get("info")).get("native_wrapper"))
    if not error:
        errors = wrapper.get("errors")
        error = errors[-1] if isinstance(errors, list) and errors else None
    if not error:
        return ("not ok", "") if wrapper.get("ok") is False else None
    if isinstance(error, dict):
        kind = _text(error.get("type")) or _text(error.get("error")) or "Error"
        message = error.get("message", error.get("error_chain_str", ""))
        return kind, as_text(message)
    return "Error", as_text(error)


def duration_ms(timing: Any) -> int | None:
    """From the start to the last end of a stage; v0 rows have their total."""
    stages = mapping(timing)
    total, start = number(stages.get("total_ms")), number(stages.get("start"))
    ends = [number(mapping(stage).get("end")) for stage in stages.values()]
    last = max((end for end in ends if end is not None), default=None)
    if start is not None and last is not None:
        total = max(0.0, last - start) * 1000
    return None if total is None or abs(total) > MAX_INTEGER else round(total)


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def content_text(content: Any) -> str:
    """The text of a message's content, whatever its form."""
    if isinstance(content, list):
        return "\n".join(text for part in content if (text := content_text(part)))
    if isinstance(content, dict):
        return _text(content.get("text")) or ""
    return content if isinstance(content, str) else ""


def integer(value: Any) -> int | None:
    """An integer that SQLite can store."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_INTEGER:
        return None
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    """``value``, if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _example(value: Any) -> int | str | None:
    if value is None or isinstance(value, str):
        return value
    exact = integer(value)
    return as_text(value) if exact is None else exact


def _tokens(usage: Any) -> int | None:
    counts = [
        number(mapping(usage).get(key))
        for key in (
            *("prompt_tokens", "completion_tokens", "cached_input_tokens"),
            *("input_tokens", "output_tokens"),
        )
    ]
    known = [count for count in counts if count is not None]
    return round(sum(known)) if known and abs(sum(known)) <= MAX_INTEGER else None


def _preview(messages: list[dict[str, Any]], role: str) -> str:
    texts = (content_text(item.get("content")) for item in messages if item.get("role") == role)
    return _short(next((text for text in texts if text), None))


def _short(value: Any) -> str:
    if value is None or value == "":
        return ""
    text = value if isinstance(value, str) else as_text(value)
    # One line of a table; twice the length first, so that a megabyte is not split into words.
    line = " ".join(text[: 2 * MAX_PREVIEW].split())
    return line if len(line) < MAX_PREVIEW else f"{line[: MAX_PREVIEW - 1]}…"
