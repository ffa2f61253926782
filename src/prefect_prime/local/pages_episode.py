"""One episode: found among the samples or the traces, and laid out to be read.

A sample holds its whole episode (``info.native_wrapper``); one that was too large for that
is one row per trace; a v0 row is a conversation without an episode; an episode that was
never a sample is in the tables of Prime Traces. All four become the same layout: agents,
each with branches of messages. A branch is told once: the second begins after the message
where it left the first.
"""
# ruff: noqa: S608 - SQL is put together from constants; every value is bound

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from prefect_prime.encoding import number
from prefect_prime.local.pages_facts import as_messages, as_text, duration_ms, mapping
from prefect_prime.projection import reward_scores, trace_reward

#: Characters of one text, messages of one agent and agents of one episode that are shown.
MAX_TEXT = 20_000
MAX_MESSAGES = 1_000
MAX_AGENTS = 50
#: Bytes of JSON that are shown in the page; more has a page of its own.
MAX_JSON = 200_000

#: Images that are shown: those that came along, in formats without a script of their own.
_IMAGES = tuple(f"data:image/{kind};base64," for kind in ("png", "jpeg", "gif", "webp"))
_ROLES = frozenset({"system", "user", "assistant", "tool"})


@dataclass(frozen=True)
class Found:
    """An episode in one of its forms: traces, or rows of which each stands for one.

    ``position`` is that of its sample, ``body`` its JSON.
    """

    record: Mapping[str, Any]
    traces: list[Mapping[str, Any]]
    body: bytes
    position: int | None = None


@dataclass(frozen=True)
class ToolCall:
    """A tool that a message calls."""

    name: str
    id: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One message. ``parts`` are (``text`` or ``image``, value)."""

    number: int
    role: str
    name: str
    parts: list[tuple[str, str]]
    reasoning: str
    calls: list[ToolCall]
    is_sampled: bool
    left_out: int


@dataclass
class Branch:
    """Messages that follow one another, after message ``after`` of an earlier branch."""

    after: int | None
    messages: list[Message] = field(default_factory=list)


@dataclass(frozen=True)
class Agent:
    """One trace, or a row that stands for one."""

    name: str
    model: str | None
    is_trainable: bool
    reward: float | None
    rewards: dict[str, tuple[float | None, float | None]]
    metrics: dict[str, Any]
    stop_condition: str | None
    is_truncated: bool
    errors: list[dict[str, str]]
    timing: Mapping[str, Any]
    duration_ms: int | None
    tokens: dict[str, Any]
    tools: list[Mapping[str, Any]]
    branches: list[Branch]
    hidden: int


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
        return Found(wrapper, _mappings(traces), row["body"], position)
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
        f"  AND episode_id = :episode ORDER BY position LIMIT {MAX_AGENTS}) ORDER BY position",
        {"evaluation": evaluation_id, "episode": episode_id},
    )
    return [orjson.loads(body) for (body,) in bodies]


def _as_trace(row: Mapping[str, Any]) -> dict[str, Any]:
    """A sample row in the form of a trace; its conversation in the form of a tree."""
    error = row.get("error")
    paths = [
        messages
        for entry in _mappings(row.get("trajectory"))
        if (messages := _mappings(entry.get("messages")))
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


def agent(trace: Mapping[str, Any]) -> Agent:
    """A trace as it is shown."""
    who = mapping(trace.get("agent"))
    rewards = reward_scores(trace)
    nodes = [mapping(node) for node in _list(trace.get("nodes"))]
    branches, hidden = _branches(nodes)
    if "row_reward" in trace:
        reward = number(trace.get("row_reward"))
    else:
        reward = trace_reward(trace) if trace.get("rewards") is not None else None
    tokens = {
        name.removeprefix("num_").replace("_", " "): trace[name]
        for name in ("num_input_tokens", "num_output_tokens", "num_total_tokens")
        if number(trace.get(name)) is not None
    }
    usage = {name: value for name, value in mapping(trace.get("usage")).items() if number(value)}
    model = mapping(who.get("config")).get("model")
    return Agent(
        name=as_text(who.get("name") or "agent"),
        model=model if isinstance(model, str) else None,
        is_trainable=who.get("trainable") is not False,
        reward=reward,
        rewards=rewards,
        metrics=dict(mapping(trace.get("metrics"))),
        stop_condition=_text(trace.get("stop_condition")) or None,
        is_truncated=trace.get("is_truncated") is True
        or any(call.get("finish_reason") == "length" for call in _mappings(trace.get("calls"))),
        errors=[shown_error(error) for error in _list(trace.get("errors"))],
        timing=mapping(trace.get("timing")),
        duration_ms=duration_ms(trace.get("timing")),
        tokens=tokens or usage,
        tools=_mappings(trace.get("tools")),
        branches=branches,
        hidden=hidden,
    )


def shown_error(error: Any) -> dict[str, str]:
    """``type``, ``message`` and ``traceback`` of an error in any form."""
    if not isinstance(error, dict):
        return {"type": "Error", "message": as_text(error)[:MAX_TEXT], "traceback": ""}
    return {
        "type": _text(error.get("type")) or _text(error.get("error")) or "Error",
        "message": as_text(error.get("message", ""))[:MAX_TEXT],
        "traceback": _text(error.get("traceback"))[-MAX_TEXT:],
    }


def errors_of(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """The errors of the episode itself."""
    return [shown_error(error) for error in _list(record.get("errors"))]


def _branches(nodes: Sequence[Mapping[str, Any]]) -> tuple[list[Branch], int]:
    """The branches in the order of their last messages, and how many messages are left out."""
    parents = [_parent(node, len(nodes)) for node in nodes]
    children = set(parents)
    told: set[int] = set()
    branches: list[Branch] = []
    # Nodes that form a circle have no last one: what no branch tells comes at the end.
    ends = [node for node in range(len(nodes)) if node not in children]
    for end in [*ends, *range(len(nodes))]:
        path: list[int] = []
        step: int | None = end
        while step is not None and step not in told:
            told.add(step)
            path.append(step)
            step = parents[step]
        if path:
            shown = [_message(nodes[at], at) for at in reversed(path)]
            branches.append(Branch(None if step is None else step + 1, shown))
    hidden = 0
    room = MAX_MESSAGES
    for branch in branches:
        hidden += max(0, len(branch.messages) - room)
        branch.messages = branch.messages[:room]
        room -= len(branch.messages)
    return [branch for branch in branches if branch.messages], hidden


def _parent(node: Mapping[str, Any], size: int) -> int | None:
    parent = node.get("parent")
    is_known = isinstance(parent, int) and not isinstance(parent, bool) and 0 <= parent < size
    return parent if is_known else None


def _message(node: Mapping[str, Any], index: int) -> Message:
    message = mapping(node.get("message"))
    role = _text(message.get("role")) or "unknown"
    parts: list[tuple[str, str]] = []
    left_out = 0
    for kind, value in _parts(message.get("content")):
        if kind == "text":
            left_out += max(0, len(value) - MAX_TEXT)
        parts.append((kind, value[:MAX_TEXT] if kind == "text" else value))
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return Message(
        number=index + 1,
        role=role if role in _ROLES else "other",
        name=role if role not in _ROLES else _text(message.get("name")),
        parts=parts,
        reasoning=as_text(reasoning)[:MAX_TEXT] if reasoning else "",
        calls=[_call(call) for call in _list(message.get("tool_calls"))],
        is_sampled=node.get("sampled") is True,
        left_out=left_out,
    )


def _parts(content: Any) -> Iterator[tuple[str, str]]:
    if content is None or content == "":
        return
    if not isinstance(content, list):
        yield "text", as_text(content)
        return
    for part in content:
        if not isinstance(part, dict):
            yield "text", as_text(part)
        elif isinstance(part.get("text"), str):
            yield "text", part["text"]
        else:
            image = part.get("image_url")
            url = mapping(image).get("url") if isinstance(image, dict) else image
            if isinstance(url, str) and url.startswith(_IMAGES):
                yield "image", url
            else:
                yield "text", as_text(part)


def _call(call: Any) -> ToolCall:
    known = mapping(call)
    function = mapping(known.get("function")) or known
    arguments = function.get("arguments", function.get("input"))
    return ToolCall(
        name=_text(function.get("name")) or ("tool" if known else as_text(call)[:MAX_TEXT]),
        id=_text(known.get("id")),
        arguments="" if arguments is None else pretty(arguments)[:MAX_TEXT],
    )


def pretty(value: Any) -> str:
    """JSON, or a text that may hold JSON, with its structure on lines of its own."""
    try:
        parsed = orjson.loads(value) if isinstance(value, (str, bytes)) else value
        return orjson.dumps(parsed, option=orjson.OPT_INDENT_2).decode()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return value.decode() if isinstance(value, bytes) else as_text(value)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
