"""From JSON lines to rows: what is read out of an episode and a trace, and what refuses it.

The records are those of verifiers 0.4. A trace needs an ``id``; everything else may be
absent, but what is read from it must have its type, else ``invalid_trace``. All lines are
checked before anything is stored, and messages name the line, counted from 1.

Where a column comes from:

- ``run_id``: the trace's ``run.id``, never the episode's envelope; an episode has that of
  its first member. ``run_step``: ``run.work.step``.
- ``environment_id``: the episode's ``env.id``, for a bare trace its own.
- ``created_at``: ``timing.start``, else the time of arrival; an episode has its
  earliest member's. ``duration_ms``: from there to the last end of a stage in ``timing``.
- ``reward``: the sum of score times weight over the scored ``rewards``, None if none is.
- ``outcome``: a trace's ``stop_condition``; an episode's ``ok``, ``timeout`` or ``error``.
- ``has_error``: a trace that is not ``ok``; an episode with errors of its own.
- ``is_truncated``: a stop condition of a limit, or a last answer cut by length.
- ``total_tokens``: ``num_total_tokens``. ``model``: ``agent.config.model``; what stands
  before its first slash is the provider. ``task_id``: ``task.key``, else ``task.data.idx``.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
from prime_traces import ErrorCode, LineFormat

from prefect_prime.local.fields import Record
from prefect_prime.local.rules import Limits
from prefect_prime.local.wire import TracesError, rejected

#: Seconds since 1970: 2000 to 2100. Fixed, so that the same bytes always get the same
#: verdict; it catches a clock in milliseconds.
CREATED_AT_WINDOW = (946_684_800, 4_102_444_800)
#: Stop conditions by which a limit, not the agent, ended the trace.
TRUNCATING = frozenset(
    {"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed"}
)
_MICROSECONDS = 1_000_000


class TraceRow(NamedTuple):
    """The columns of one trace."""

    trace_id: str
    episode_id: str | None
    created_at: int
    run_id: str | None
    run_step: int | None
    environment_id: str | None
    model_provider: str | None
    model_id: str | None
    task_id: str | None
    agent_name: str | None
    reward: float | None
    outcome: str | None
    has_error: bool
    is_truncated: bool
    duration_ms: int
    total_tokens: int
    size_bytes: int


class EpisodeRow(NamedTuple):
    """The columns of one episode; ``envelope`` holds its members' ids in place of them."""

    episode_id: str
    created_at: int
    run_id: str | None
    environment_id: str | None
    outcome: str | None
    has_error: bool
    error_type: str | None
    error_message: str | None
    envelope: bytes


class Upload(NamedTuple):
    """Everything one request stores. ``documents`` are the traces' own JSON, in their order."""

    episodes: list[EpisodeRow]
    traces: list[TraceRow]
    documents: list[bytes]


def read_lines(data: bytes, line_format: LineFormat, arrival: int, limits: Limits) -> Upload:
    """The rows of ``data``; ``arrival`` in microseconds. Raises ``TracesError``."""
    if data.count(b"\n") > limits.upload_rows:  # a bomb of blank lines is gigabytes as a list
        raise _too_many(limits)
    upload = Upload([], [], [])
    trace_ids: set[str] = set()
    episode_ids: set[str] = set()
    for number, line in _lines(data, limits):
        record = Record(_parse(line, number), f"line {number}")
        if ("traces" in record.value) != (line_format is LineFormat.EPISODE):
            raise rejected(
                ErrorCode.LINE_FORMAT_MISMATCH,
                f"line {number} is not of the declared format {line_format.value!r}",
            )
        record.encoded()  # what cannot be written cannot be read back either
        first = len(upload.traces)
        if line_format is LineFormat.EPISODE:
            _read_episode(record, upload, arrival, limits)
            _claim(upload.episodes[-1].episode_id, episode_ids, ErrorCode.DUPLICATE_EPISODE_ID)
        else:
            upload.traces.append(
                _trace_row(
                    record,
                    episode_id=record.text("episode_id"),
                    environment_id=None,
                    arrival=arrival,
                    limits=limits,
                    size=len(line),
                )
            )
            upload.documents.append(line)
        for row in upload.traces[first:]:
            _claim(row.trace_id, trace_ids, ErrorCode.DUPLICATE_TRACE_ID)
        if len(upload.traces) + len(upload.episodes) > limits.upload_rows:
            raise _too_many(limits)
    if not upload.traces and not upload.episodes:
        raise rejected(ErrorCode.INVALID_TRACE, "the upload has no lines")
    return upload


def _too_many(limits: Limits) -> TracesError:
    what = f"the upload has more than {limits.upload_rows} rows"
    return rejected(ErrorCode.TOO_MANY_TRACES_IN_UPLOAD, what)


def _lines(data: bytes, limits: Limits) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line or line.isspace():
            continue
        if len(line) > limits.line:
            what = f"line {number} has {len(line)} bytes, over {limits.line}"
            raise rejected(ErrorCode.TRACE_TOO_LARGE, what)
        yield number, line


def _parse(line: bytes, number: int) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as exc:
        try:
            line.decode()
        except UnicodeDecodeError:
            raise rejected(ErrorCode.MALFORMED_ENCODING, f"line {number} is not UTF-8") from None
        raise rejected(ErrorCode.INVALID_TRACE, f"line {number} is not JSON: {exc}") from None


def _claim(identifier: str, seen: set[str], code: ErrorCode) -> None:
    if identifier in seen:
        raise rejected(code, f"the id {identifier!r} is twice in this upload")
    seen.add(identifier)


def _read_episode(record: Record, upload: Upload, arrival: int, limits: Limits) -> None:
    episode_id = record.identifier()
    if len(episode_id) > limits.identifier:
        raise rejected(
            ErrorCode.EPISODE_ID_TOO_LONG,
            f"{record.where} has an episode id over {limits.identifier} characters",
        )
    members = record.objects("traces")
    if len(members) > limits.episode_traces:
        raise rejected(
            ErrorCode.TOO_MANY_TRACES_IN_EPISODE,
            f"{record.where} has {len(members)} traces, over {limits.episode_traces}",
        )
    environment_id = _environment_id(record, limits)
    rows: list[TraceRow] = []
    for member in members:
        document = member.encoded()
        rows.append(
            _trace_row(
                member,
                episode_id=episode_id,
                environment_id=environment_id,
                arrival=arrival,
                limits=limits,
                size=len(document),
            )
        )
        upload.documents.append(document)
    upload.traces.extend(rows)
    errors = record.objects("errors")
    last = errors[-1] if errors else Record({}, record.where)
    upload.episodes.append(
        EpisodeRow(
            episode_id=episode_id,
            created_at=min((row.created_at for row in rows), default=arrival),
            run_id=next((row.run_id for row in rows if row.run_id is not None), None),
            environment_id=environment_id,
            outcome=_episode_outcome(record, failed=bool(errors)),
            has_error=bool(errors),
            error_type=last.text("type"),
            error_message=last.text("message"),
            envelope=orjson.dumps({**record.value, "traces": [row.trace_id for row in rows]}),
        )
    )


def _episode_outcome(record: Record, *, failed: bool) -> str | None:
    if record.value.get("is_timeout") is True:
        return "timeout"
    ok = record.value.get("ok")
    if failed or ok is False:
        return "error"
    return "ok" if ok is True else None


def _environment_id(record: Record, limits: Limits) -> str | None:
    environment_id = record.section("env").text("id")
    if environment_id is not None and len(environment_id) > limits.identifier:
        raise rejected(
            ErrorCode.ENVIRONMENT_ID_TOO_LONG,
            f"{record.where} has an environment id over {limits.identifier} characters",
        )
    return environment_id or None


def _trace_row(
    record: Record,
    *,
    episode_id: str | None,
    environment_id: str | None,
    arrival: int,
    limits: Limits,
    size: int,
) -> TraceRow:
    trace_id = record.identifier()
    for node in record.objects("nodes"):
        node.section("message")
    calls = record.objects("calls")
    run, task, agent = record.section("run"), record.section("task"), record.section("agent")
    model = agent.section("config").text("model")
    created_at, duration_ms = _times(record, arrival)
    ok = record.value.get("ok")
    stop_condition = record.text("stop_condition")
    answers = [call.value.get("finish_reason") for call in calls if not call.value.get("error")]
    return TraceRow(
        trace_id=trace_id,
        episode_id=episode_id,
        created_at=created_at,
        run_id=run.text("id"),
        run_step=run.section("work").integer("step"),
        environment_id=environment_id or _environment_id(record, limits),
        model_provider=model.split("/", 1)[0] if model and "/" in model else None,
        model_id=model,
        task_id=_task_id(task),
        agent_name=agent.text("name"),
        reward=_reward(record),
        outcome=stop_condition,
        has_error=not ok if isinstance(ok, bool) else bool(record.objects("errors")),
        is_truncated=stop_condition in TRUNCATING or answers[-1:] == ["length"],
        duration_ms=duration_ms,
        total_tokens=record.integer("num_total_tokens") or 0,
        size_bytes=size,
    )


def _task_id(task: Record) -> str | None:
    key = task.text("key")
    if key is not None:
        return key
    index = task.section("data").value.get("idx")
    return None if index is None else str(index)


def _times(record: Record, arrival: int) -> tuple[int, int]:
    timing = record.section("timing")
    start = timing.number("start")
    if not start:
        return arrival, 0
    earliest, latest = CREATED_AT_WINDOW
    if not earliest <= start < latest:
        raise rejected(
            ErrorCode.CREATED_AT_OUT_OF_WINDOW,
            f"{record.where} starts at {start} seconds since 1970: not between 2000 and 2100",
        )
    stages = [timing.section(key) for key, value in timing.value.items() if isinstance(value, dict)]
    ends = [end for stage in stages if (end := stage.number("end")) and earliest <= end < latest]
    return int(start * _MICROSECONDS), round(max(0.0, max(ends, default=start) - start) * 1000)


def _reward(record: Record) -> float | None:
    rewards = record.section("rewards")
    values = []
    for name, reward in rewards.value.items():
        if isinstance(reward, dict):
            scored = rewards.section(name)
            score, weight = scored.number("score"), scored.number("weight")
            if score is not None:
                values.append(float(score) * (1.0 if weight is None else weight))
        elif reward is not None:
            values.append(float(rewards.number(name) or 0))
    total = sum(values) if values else None
    return total if total is not None and math.isfinite(total) else None
