"""Episodes as the rows of the evaluation's samples table, computed from plain JSON.

:func:`sample_rows` takes the mapping of a decoded record, so a JSON file and a
verifiers ``Episode`` give the same rows. What verifiers computes on its objects
(branches, token counts, reward, truncation) is computed here from the record itself.
A missing key has its natural empty value, which is the default that verifiers'
schema gives it; a value of a wrong type counts as missing. Nothing here raises for
what a producer left out, nothing changes its input, and rows share nothing with it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prefect_prime.encoding import clean_text, decode, dumps, number

__all__ = [
    "MAX_REQUEST_BYTES",
    "Projection",
    "example_id",
    "is_trainable",
    "reward_scores",
    "sample_rows",
    "summary_trace_index",
    "trace_reward",
]

#: Largest body that ``POST /evaluations/{id}/samples`` accepts, in bytes of JSON.
MAX_REQUEST_BYTES = 25 * 1024 * 1024
_ENVELOPE_BYTES = len(b'{"samples":[]}')

#: Stop conditions that mean the framework cut the trace short.
_TRUNCATING_STOPS = (
    "max_turns",
    "max_input_tokens",
    "max_output_tokens",
    "max_total_tokens",
    "compaction_failed",
)

#: Optional counts of a usage block: absent in the sum only if no call reported them.
_OPTIONAL_USAGE = ("cached_input_tokens", "reasoning_tokens", "cost")


@dataclass(frozen=True, slots=True)
class Projection:
    """What one episode contributes to the samples table.

    ``lines`` are its rows as JSON, each of which fits into a request. ``oversized`` holds the
    traces whose row alone exceeds one, by id, with the bytes of that request: they cannot be
    stored as samples, and are counted and named.
    """

    lines: list[bytes] = field(default_factory=list)
    oversized: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows themselves, each sharing nothing."""
        return [decode(line) for line in self.lines]


def sample_rows(
    episode: Mapping[str, Any], rollout_number: int, limit: int = MAX_REQUEST_BYTES
) -> Projection:
    """The sample rows of ``episode``, the ``rollout_number``-th (from 1) of its example.

    One row: the summary trace's, with the episode's id as ``sample_id`` and the whole
    episode in ``info.native_wrapper``. None for an episode without traces. One row per
    trace, without the wrapper, where a request with that row would exceed ``limit`` bytes.
    """
    traces = _mappings(episode.get("traces"))
    if not traces:
        return Projection()
    index = summary_trace_index(episode)
    row = _trace_row(traces[index], rollout_number, episode)
    row["sample_id"] = episode.get("id")
    row["info"] = {
        **(row["info"] or {}),
        "native_wrapper": episode,
        "native_trace_index": index,
    }
    data = dumps(row)
    if _ENVELOPE_BYTES + len(data) <= limit:
        return Projection([data])
    projection = Projection()
    for trace in traces:
        data = dumps(_trace_row(trace, rollout_number, episode))
        if (size := _ENVELOPE_BYTES + len(data)) <= limit:
            projection.lines.append(data)
        else:
            projection.oversized[str(trace.get("id"))] = size
    return projection


def summary_trace_index(episode: Mapping[str, Any]) -> int:
    """Index of the trace that stands for the episode: the first trainable, else the first."""
    traces = _mappings(episode.get("traces"))
    return next((index for index, trace in enumerate(traces) if is_trainable(trace)), 0)


def example_id(episode: Mapping[str, Any]) -> int | str | None:
    """The example that ``episode`` is a rollout of; rollouts are numbered per example.

    ``task.data.idx`` of the summary trace (of the episode where there is no trace);
    where it has none, the durable ``task.data.id``; else None.
    """
    traces = _mappings(episode.get("traces"))
    owner = traces[summary_trace_index(episode)] if traces else episode
    return _example_id(_task_data(owner))


def is_trainable(trace: Mapping[str, Any]) -> bool:
    """Whether the trace's tokens train the policy under evaluation; true unless said otherwise."""
    return bool(_mapping(trace.get("agent")).get("trainable", True))


def reward_scores(trace: Mapping[str, Any]) -> dict[str, tuple[float | None, float | None]]:
    """Each reward's ``(score, weight)``; None stands for what is not a finite number.

    A null entry (scoring did not run) is left out. A bare number has weight 1.
    """
    scores: dict[str, tuple[float | None, float | None]] = {}
    for name, entry in _mapping(trace.get("rewards")).items():
        if type(entry) is dict or isinstance(entry, Mapping):
            scores[name] = number(entry.get("score")), number(entry.get("weight", 1.0))
        elif entry is not None:
            scores[name] = number(entry), 1.0
    return scores


def trace_reward(trace: Mapping[str, Any]) -> float | None:
    """The weighted sum of the trace's scores; None if one of them is not a finite number."""
    total: float = 0  # an int where nothing was scored: as sum() has it, and the reference
    for score, weight in reward_scores(trace).values():
        if score is None or weight is None:
            return None
        total += score * weight
    return total if math.isfinite(total) else None


def _trace_row(
    trace: Mapping[str, Any], rollout_number: int, episode: Mapping[str, Any]
) -> dict[str, Any]:
    agent = _mapping(trace.get("agent"))
    task = _task_data(trace)
    calls = _mappings(trace.get("calls"))
    errors = _mappings(trace.get("errors"))
    trajectory = list(_trajectory(trace, calls))
    row: dict[str, Any] = {
        "sample_id": trace.get("id"),
        "example_id": _example_id(task),
        "rollout_number": rollout_number,
        "episode_id": episode.get("id"),
        "agent": agent.get("name", "agent"),
        "trainable": is_trainable(trace),
        "task": task,
        "prompt": [],
        "completion": trajectory[-1]["messages"] if trajectory else [],
        "answer": task.get("answer"),
        "tool_defs": [_present(tool) for tool in _mappings(trace.get("tools"))] or None,
        "reward": trace_reward(trace),
        "timing": _present_everywhere(_mapping(trace.get("timing"))),
        "is_completed": bool(trace.get("is_completed", False)),
        "is_truncated": _is_truncated(trace, calls),
        "metrics": dict(_mapping(trace.get("metrics"))),
        "error": _present(errors[-1]) if errors else None,
        "stop_condition": trace.get("stop_condition"),
        "trajectory": trajectory,
        "token_usage": _usage(calls),
        "info": dict(_mapping(trace.get("info"))) or None,
    }
    for name, (score, _) in reward_scores(trace).items():
        row.setdefault(name, score)
    return row


def _trajectory(
    trace: Mapping[str, Any], calls: list[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """One entry per branch: a path of message nodes from a root to a leaf."""
    nodes = [_mapping(node) for node in _list(trace.get("nodes"))]
    parents = [_parent(node, len(nodes)) for node in nodes]
    call_of_node = {call["node"]: call for call in calls if isinstance(call.get("node"), int)}
    for leaf in sorted(set(range(len(nodes))) - set(parents)):
        path: list[int] = []
        node: int | None = leaf
        while node is not None and len(path) < len(nodes):
            path.append(node)
            node = parents[node]
        path.reverse()
        usages = [
            usage
            for step in path
            if step in call_of_node
            and isinstance(usage := call_of_node[step].get("usage"), Mapping)
        ]
        yield {
            "messages": [_message(nodes[step].get("message")) for step in path],
            "num_input_tokens": _new_input_tokens(usages),
            "num_output_tokens": sum(_count(usage, "completion_tokens") for usage in usages),
        }


def _parent(node: Mapping[str, Any], size: int) -> int | None:
    parent = node.get("parent")
    return parent if isinstance(parent, int) and 0 <= parent < size else None


def _new_input_tokens(usages: list[Mapping[str, Any]]) -> int:
    """Tokens fed in along a branch, each once: a call's input beyond the call before it.

    A lower bound where the engine dropped tokens in between.
    """
    total = previous = 0
    for usage in usages:
        fed = _count(usage, "prompt_tokens") + _count(usage, "cached_input_tokens")
        total += max(0, fed - previous)
        previous = fed + _count(usage, "completion_tokens")
    return total


def _usage(calls: list[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Token usage summed over all model calls; None if no call reported any."""
    usages = [usage for call in calls if isinstance(usage := call.get("usage"), Mapping)]
    if not usages:
        return None
    total: dict[str, Any] = {
        key: sum(_count(usage, key) for usage in usages)
        for key in ("prompt_tokens", "completion_tokens")
    }
    for key in _OPTIONAL_USAGE:
        if reported := [usage[key] for usage in usages if number(usage.get(key)) is not None]:
            total[key] = sum(reported)
    return total


def _is_truncated(trace: Mapping[str, Any], calls: list[Mapping[str, Any]]) -> bool:
    if trace.get("stop_condition") in _TRUNCATING_STOPS:
        return True
    last = next((call for call in reversed(calls) if call.get("error") is None), None)
    return last is not None and last.get("finish_reason") == "length"


def _task_data(owner: Mapping[str, Any]) -> dict[str, Any]:
    data = _present(_mapping(_mapping(owner.get("task")).get("data")))
    for key in ("timeout", "resources"):
        if isinstance(data.get(key), Mapping):
            data[key] = _present(data[key])
    return data


def _example_id(task: Mapping[str, Any]) -> int | str | None:
    for key in ("idx", "id"):
        value = task.get(key)
        if isinstance(value, str):
            return clean_text(value)
        exact = number(value)
        if exact is not None and exact.is_integer():
            return value if isinstance(value, int) else int(exact)
    return None


def _message(message: Any) -> dict[str, Any]:
    shown = _present(_mapping(message))
    for key in ("content", "tool_calls"):
        if isinstance(parts := shown.get(key), list):
            shown[key] = [_present(part) if isinstance(part, Mapping) else part for part in parts]
    return shown


def _present(value: Mapping[str, Any]) -> dict[str, Any]:
    """``value`` without its null entries: a record omits what it does not know."""
    return {key: item for key, item in value.items() if item is not None}


def _present_everywhere(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _present_everywhere(item) if type(item) is dict or isinstance(item, Mapping) else item
        for key, item in value.items()
        if item is not None
    }


def _count(usage: Mapping[str, Any], key: str) -> int:
    return int(number(usage.get(key)) or 0)


def _mapping(value: Any) -> Mapping[str, Any]:
    # Most values are dicts; asking for the abstract class costs ten times as much.
    return value if type(value) is dict or isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in _list(value) if type(item) is dict or isinstance(item, Mapping)]
