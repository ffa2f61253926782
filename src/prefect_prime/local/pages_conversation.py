"""A trace laid out to be read: its agent, and its messages in branches.

A branch is told once: the second begins after the message where it left the first. Nothing
that a producer wrote makes the page endless: what is over a limit is counted, and is whole in
the JSON.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from prefect_prime.encoding import number
from prefect_prime.local.pages_facts import as_text, duration_ms, mapping
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
        or any(call.get("finish_reason") == "length" for call in mappings(trace.get("calls"))),
        errors=[shown_error(error) for error in _list(trace.get("errors"))],
        timing=mapping(trace.get("timing")),
        duration_ms=duration_ms(trace.get("timing")),
        tokens=tokens or usage,
        tools=mappings(trace.get("tools")),
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


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; none where it is no list."""
    return [item for item in _list(value) if isinstance(item, dict)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
