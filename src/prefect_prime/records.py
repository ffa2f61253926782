"""Records: what they are, what they are called, and whose run they belong to.

A record is a mapping, or an object with ``to_record()`` such as a verifiers
``Episode`` or ``Trace``. Three kinds travel different ways:

- **episode** (has ``traces``): to the traces sink and, projected, to the samples sink
- **trace** (has neither): to the traces sink only
- **sample** (``sample_id`` and no ``traces``; a v0 row): to the samples sink only

What is wrong with a single record raises ``RecordRejectedError``: that record is set
aside with the message as its reason, and its neighbours are unharmed. Nothing here
changes the mapping it was given.
"""

import numbers
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, get_args

from prefect_prime.encoding import as_read, decode, encode, number
from prefect_prime.errors import RecordRejectedError
from prefect_prime.handmade import episode
from prefect_prime.natural import clean_text, described, shown, text_keys

__all__ = [
    "KINDS",
    "RUN_TYPE",
    "Kind",
    "episode",
    "kind_of",
    "origin_of",
    "outline",
    "record_id",
    "restore",
    "stamp",
    "to_mapping",
    "trace_ids",
]

Kind = Literal["episode", "trace", "sample"]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: ``run.type`` of every record of an evaluation.
RUN_TYPE = "eval"

_TEXT = frozenset({str})
#: Keys of a trace and of a sample row that :func:`outline` keeps.
_OF_TRACE = ("id", "agent", "task", "rewards", "metrics", "errors")
_OF_SAMPLE = ("sample_id", "trainable", "reward", "metrics", "error")


def to_mapping(record: Any) -> Mapping[str, Any]:
    """The mapping of ``record``: itself, or what its ``to_record()`` returns.

    Its keys are the text that they have in the line. Raises RecordRejectedError for
    anything else, and where ``to_record()`` fails.
    """
    kind = type(record).__name__
    mapping = record
    if not isinstance(record, Mapping):
        convert = getattr(record, "to_record", None)
        if isinstance(record, type) or not callable(convert):
            raise RecordRejectedError(
                f"a record is a mapping or an object with to_record(), not {kind}"
            )
        try:
            mapping = convert()
        except Exception as exc:
            raise RecordRejectedError(f"{kind}.to_record() failed: {described(exc)}") from exc
        if not isinstance(mapping, Mapping):
            raise RecordRejectedError(
                f"{kind}.to_record() returned {type(mapping).__name__}, not a mapping"
            )
    if type(mapping) is dict and _TEXT.issuperset(map(type, mapping)):
        return mapping
    try:
        return text_keys(mapping)
    except Exception as exc:
        raise RecordRejectedError(f"a record's keys cannot be read: {described(exc)}") from exc


def kind_of(record: Mapping[str, Any]) -> Kind:
    """Which kind ``record`` is, by the keys it has."""
    if "traces" in record:
        return "episode"
    return "sample" if "sample_id" in record else "trace"


def record_id(record: Mapping[str, Any], kind: Kind) -> str:
    """The id that ``record`` is stored under: ``sample_id`` of a sample, else ``id``.

    What becomes text in the line, as a UUID does, is text. An integer names a sample by
    its digits. Prime Traces takes text alone, so an episode or trace with another id is
    rejected, as is an empty or missing one.
    """
    key = "sample_id" if kind == "sample" else "id"
    value = record.get(key)
    if not isinstance(value, str):
        value = decode(encode({key: value}))[key]
    if kind == "sample" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        found = f"it is {type(value).__name__}" if key in record else "it is missing"
        raise RecordRejectedError(f"{key} of a record of kind {kind} must be text: {found}")
    if not value:
        raise RecordRejectedError(f"{key} of a record of kind {kind} is empty")
    return clean_text(value)


def outline(record: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """What the spool and the metrics read of an encoded record, which was stamped.

    Whatever a producer's values are, these are JSON: what a later process reads in the line.
    """
    if kind == "episode":
        traces = [_outlined(trace) for trace in record["traces"]]
        errors = record.get("errors")
        part = {"id": record["id"], "ok": record.get("ok"), "errors": errors, "traces": traces}
    elif kind == "sample":
        part = {key: record[key] for key in _OF_SAMPLE if key in record}
    else:
        part = _outlined(record)
    outlined: dict[str, Any] = as_read(part)
    return outlined


def trace_ids(outlined: Mapping[str, Any], kind: Kind, episode_id: str) -> tuple[str, ...]:
    """The ids of an outlined episode's traces; those without one are left to the service.

    Raises RecordRejectedError where one is there twice.
    """
    if kind != "episode":
        return ()
    ids = [id_ for trace in outlined["traces"] if isinstance(id_ := trace.get("id"), str)]
    if len(set(ids)) < len(ids):
        twice = next(id_ for index, id_ in enumerate(ids) if id_ in ids[:index])
        raise RecordRejectedError(
            f"trace id {shown(twice)} is twice in episode {shown(episode_id)}"
        )
    return tuple(ids)


def stamp(record: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """A copy of an episode or trace that belongs to run ``run_id``.

    ``run.id`` and ``run.type`` are set on the record and on each member trace, over
    what the producer had there; the rest of each ``run`` is kept, and a member without
    one gets a copy of the record's. Members too, because Prime Traces reads the run
    from those alone. Copies are shallow.

    Raises RecordRejectedError where ``traces`` is not a list of mappings.
    """
    stamped = dict(record)
    stamped["run"] = _rekeyed(stamped.get("run"), run_id)
    if "traces" in stamped:
        stamped["traces"] = [
            {**member, "run": _rekeyed(_own_run(member) or stamped["run"], run_id)}
            for member in _members(stamped)
        ]
    return stamped


def origin_of(record: Mapping[str, Any]) -> str:
    """The producer's own ``run`` blocks, which :func:`stamp` writes over.

    Canonical JSON text, equal for all records of a typical run: intern it.
    :func:`restore` takes it. Raises RecordRejectedError where ``traces`` is not a list
    of mappings, or a ``run`` has no JSON form.
    """
    origin = {"run": record["run"]} if "run" in record else {}
    if "traces" in record:
        members = enumerate(_members(record))
        own = {str(index): member["run"] for index, member in members if "run" in member}
        if own:
            origin["traces"] = own
    try:
        return encode(_sorted(origin)).decode().removesuffix("\n")
    except RecordRejectedError:
        raise
    except RecursionError:
        raise RecordRejectedError("run contains itself or is nested too deeply") from None
    except Exception as exc:
        raise RecordRejectedError(f"run cannot be read: {described(exc)}") from exc


def restore(stamped: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The producer's own record: :func:`stamp` undone on a decoded line, in a shallow copy.

    ``origin`` is what :func:`origin_of` gave for the record before it was stamped.
    """
    runs: dict[str, Any] = decode(origin.encode())
    record = dict(stamped)
    _put_back(record, runs)
    if isinstance(record.get("traces"), list):
        own = runs.get("traces", {})
        members = [dict(member) for member in record["traces"]]
        for index, member in enumerate(members):
            _put_back(member, {"run": own[str(index)]} if str(index) in own else {})
        record["traces"] = members
    return record


def _outlined(trace: Mapping[str, Any]) -> dict[str, Any]:
    part = {key: trace[key] for key in _OF_TRACE if key in trace}
    if isinstance(agent := part.get("agent"), dict):
        part["agent"] = {key: agent[key] for key in ("trainable",) if key in agent}
    task = part.get("task")
    if isinstance(task, dict) and isinstance(data := task.get("data"), dict):
        # Prompts are the bulk of many records.
        part["task"] = {"data": {key: data[key] for key in ("idx", "id") if key in data}}
    if isinstance(rewards := part.get("rewards"), Mapping):
        # As null it would be a score that was never made.
        part["rewards"] = {
            name: {"score": None} if type(entry) is not dict and _is_not_finite(entry) else entry
            for name, entry in rewards.items()
        }
    return part


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, (numbers.Real, Decimal)) and number(value) is None


def _own_run(member: Mapping[str, Any]) -> Mapping[str, Any] | None:
    run = member.get("run")
    return run if isinstance(run, Mapping) else None


def _rekeyed(run: Any, run_id: str) -> dict[str, Any]:
    rest = run if isinstance(run, Mapping) else {}
    return {**rest, "id": run_id, "type": RUN_TYPE}


def _members(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    traces = record["traces"]
    if not isinstance(traces, (list, tuple)):
        raise RecordRejectedError(f"traces must be a list of traces, not {type(traces).__name__}")
    return [to_mapping(trace) for trace in traces]


def _put_back(record: dict[str, Any], own: Mapping[str, Any]) -> None:
    if "run" in own:
        record["run"] = own["run"]
    else:
        record.pop("run", None)


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value, key=str)}
    return value
