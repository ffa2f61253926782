"""Episodes built by hand, for people who have no verifiers objects."""

import json
import time
import traceback
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from prefect_prime.errors import RecordRejectedError

__all__ = ["episode"]

_ROLES = ("system", "user", "assistant", "tool")
#: Roles of other APIs, and what they are in verifiers' schema.
_ROLE_NAMES = {"developer": "system", "function": "tool"}


def episode(
    messages: Iterable[Any] = (),
    *,
    rewards: float | Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    error: str | BaseException | Mapping[str, Any] | None = None,
    example_id: int | str | None = None,
    id: str | None = None,  # noqa: A002 - the record's own key
    answer: Any = None,
    task: Mapping[str, Any] | None = None,
    info: Mapping[str, Any] | None = None,
    environment: str | None = None,
    model: str | None = None,
    agent: str = "agent",
    tools: Iterable[Mapping[str, Any]] = (),
    usage: Any = None,
    is_truncated: bool = False,
    stop_condition: str | None = None,
) -> dict[str, Any]:
    """One rollout as a valid episode of one trace, ready for ``log_episodes``.

    The minimum is one of ``messages``, ``rewards``, ``metrics`` and ``error``: an episode
    that failed before its first message still has a row on the dashboard. Rollouts of
    one example are numbered by ``example_id``, so give it whenever there are several.

    - ``messages``: the conversation in order, as ``{"role", "content", ...}`` mappings or
      the OpenAI client's objects; tool calls in its form or in verifiers'.
    - ``rewards``: a number (named ``reward``), or ``{name: score}``, or
      ``{name: {"score", "weight"}}``; a trace's reward is the sum of score times weight.
      A score of None means that scoring did not run.
    - ``metrics``: ``{name: number}``, averaged over the run but part of no reward.
    - ``error``: text, an exception, or ``{"type", "message"}``; the episode is then not ok.
    - ``example_id``: an index, or the example's durable id as text.
    - ``answer``, ``task``: the expected answer, and any other data of the example.
    - ``info``: anything else to keep with the rollout.
    - ``environment``, ``model``, ``agent``, ``tools``: what ran. ``tools`` in the OpenAI
      form or as ``{"name", "description", "parameters"}``.
    - ``usage``: tokens of the last call: ``{"prompt_tokens", "completion_tokens"}`` or the
      OpenAI client's object.
    - ``is_truncated``: the reply was cut at its length limit.
    - ``stop_condition``: default ``agent_completed``, or ``error`` with an ``error``.

    Raises RecordRejectedError (a ValueError) for what cannot be an episode.
    """
    now = time.time()
    nodes = [_node(message, index, now) for index, message in enumerate(messages)]
    if not nodes and error is None and rewards is None and not metrics:
        raise RecordRejectedError("an episode needs messages, a reward, a metric or an error")
    errors = [] if error is None else [_error(error)]
    calls = _calls(nodes, model, usage, is_truncated=is_truncated)
    tokens = _tokens(calls)
    example = _task(nodes, example_id, answer, task or {})
    trace = {
        "version": 1,  # of verifiers' trace schema
        "id": uuid.uuid4().hex,
        "task": example,
        "agent": {"config": {"model": model} if model else {}, "name": agent, "trainable": True},
        "tools": [_tool(tool) for tool in tools],
        "nodes": nodes,
        "calls": calls,
        "rewards": _rewards(rewards),
        "metrics": {str(name): _score(name, value) for name, value in (metrics or {}).items()},
        "info": dict(info or {}),
        "is_completed": True,
        "ok": not errors,
        "stop_condition": stop_condition or ("error" if errors else "agent_completed"),
        "errors": errors,
        "timing": {"start": now},
        **tokens,
    }
    return {
        "id": id or uuid.uuid4().hex,
        "env": {"id": environment or ""},
        "task": example,
        "ok": not errors,
        "errors": [],
        "traces": [trace],
        **tokens,
    }


def _task(
    nodes: list[dict[str, Any]],
    example_id: int | str | None,
    answer: Any,
    task: Mapping[str, Any],
) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, role in (("system_prompt", "system"), ("prompt", "user")):
        contents = [node["message"]["content"] for node in nodes if node["message"]["role"] == role]
        if contents and isinstance(contents[0], str):
            data[key] = contents[0]
    data |= task
    if answer is not None:
        data["answer"] = answer
    if isinstance(example_id, str):
        return {"type": "Task", "data": data | {"id": example_id}, "key": example_id}
    if example_id is not None:
        data["idx"] = example_id
    return {"type": "Task", "data": data}


def _node(message: Any, index: int, now: float) -> dict[str, Any]:
    shown = _message(_mapping(message, f"messages[{index}]"), index)
    node = {"message": shown, "sampled": shown["role"] == "assistant", "timestamp": now}
    return {"parent": index - 1, **node} if index else node


def _message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    role = _ROLE_NAMES.get(message.get("role", ""), message.get("role"))
    if role not in _ROLES:
        raise RecordRejectedError(
            f"messages[{index}] has role {role!r}; a role is one of {', '.join(_ROLES)}"
        )
    shown = {key: value for key, value in message.items() if value is not None}
    shown["role"] = role
    content = message.get("content")
    if role == "assistant":
        shown["content"] = None if content is None else _text(content)
        if calls := message.get("tool_calls"):
            shown["tool_calls"] = [_tool_call(call, at) for at, call in enumerate(calls)]
        return shown
    if isinstance(content, (list, tuple)):
        shown["content"] = [_part(part) for part in content]
    else:
        shown["content"] = _text(content)
    if role == "tool":
        shown["tool_call_id"] = str(message.get("tool_call_id") or "")
    return shown


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        return "\n".join(_part(part).get("text", "") for part in content)
    return "" if content is None else _json_text(content)


def _part(part: Any) -> dict[str, Any]:
    """A content part as verifiers types it: text or an image; others as their JSON text."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    part = _mapping(part, "a content part")
    image = part.get("image_url")
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if isinstance(image, str):
        return {"type": "image_url", "image_url": {"url": image}}
    if isinstance(image, Mapping) and isinstance(image.get("url"), str):
        return {"type": "image_url", "image_url": {"url": image["url"]}}
    return {"type": "text", "text": _json_text(part)}


def _tool_call(call: Any, index: int) -> dict[str, Any]:
    call = _mapping(call, "a tool call")
    function = _mapping(call.get("function") or call.get("custom") or call, "a tool call")
    arguments = function.get("arguments", function.get("input"))
    return {
        "id": str(call.get("id") or f"call_{index}"),
        "type": "custom" if call.get("type") == "custom" else "function",
        "name": str(function.get("name") or ""),
        "arguments": arguments if isinstance(arguments, str) else _json_text(arguments or {}),
    }


def _tool(tool: Any) -> dict[str, Any]:
    tool = _mapping(tool, "a tool")
    function = tool.get("function")
    shown = {**tool, **function} if isinstance(function, Mapping) else dict(tool)
    shown.pop("function", None)
    return {key: value for key, value in shown.items() if value is not None}


def _calls(
    nodes: list[dict[str, Any]], model: str | None, usage: Any, *, is_truncated: bool
) -> list[dict[str, Any]]:
    """The one model call that is known of: the last, with all the usage there is."""
    sampled = [index for index, node in enumerate(nodes) if node["sampled"]]
    if not (usage is not None or is_truncated or (model and sampled)):
        return []
    reply = nodes[sampled[-1]]["message"] if sampled else {}
    finish = "length" if is_truncated else "tool_calls" if reply.get("tool_calls") else "stop"
    call = {
        "node": sampled[-1] if sampled else None,
        "model": model,
        "finish_reason": finish,
        "usage": None if usage is None else _usage(_mapping(usage, "usage")),
    }
    return [{key: value for key, value in call.items() if value is not None}]


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Token counts as verifiers keeps them: prompt tokens without those read from a cache."""
    prompt_details = usage.get("prompt_tokens_details") or {}
    reply_details = usage.get("completion_tokens_details") or {}
    prompt = usage.get("prompt_tokens") or 0
    cached = usage.get("cached_input_tokens")
    if cached is None:
        cached = prompt_details.get("cached_tokens")
        prompt -= cached or 0
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": usage.get("completion_tokens") or 0,
        "cached_input_tokens": cached,
        "reasoning_tokens": usage.get("reasoning_tokens", reply_details.get("reasoning_tokens")),
        "cost": usage.get("cost"),
    }
    return {key: value for key, value in counts.items() if value is not None}


def _tokens(calls: list[dict[str, Any]]) -> dict[str, int]:
    usage = calls[0].get("usage", {}) if calls else {}
    fed = usage.get("prompt_tokens", 0) + usage.get("cached_input_tokens", 0)
    sampled = usage.get("completion_tokens", 0)
    return {
        "num_input_tokens": fed,
        "num_output_tokens": sampled,
        "num_total_tokens": fed + sampled,
    }


def _rewards(rewards: Any) -> dict[str, Any]:
    if rewards is None:
        return {}
    if not isinstance(rewards, Mapping):
        rewards = {"reward": rewards}
    return {str(name): _reward(name, reward) for name, reward in rewards.items()}


def _reward(name: Any, reward: Any) -> dict[str, Any] | None:
    parts = reward if isinstance(reward, Mapping) else {"score": reward}
    score, weight = _score(name, parts.get("score")), _score(name, parts.get("weight"))
    return None if score is None else {"score": score, "weight": 1.0 if weight is None else weight}


def _score(name: Any, value: Any) -> float | None:
    if value is None:
        return None
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise RecordRejectedError(f"{name} is {value!r}; a reward or metric is a number")


def _error(error: Any) -> dict[str, Any]:
    if isinstance(error, BaseException):
        return {
            "type": type(error).__name__,
            "message": str(error),
            "traceback": "".join(traceback.format_exception(error)),
        }
    if isinstance(error, Mapping):
        known = {
            "type": str(error.get("type") or "Error"),
            "message": str(error.get("message", "")),
        }
        return {**error, **known}
    return {"type": "Error", "message": str(error)}


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        dumped: Mapping[str, Any] = dump(mode="json", exclude_none=True, warnings=False)
        return dumped
    raise RecordRejectedError(f"{what} is a mapping, not {type(value).__name__}")


def _json_text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)
