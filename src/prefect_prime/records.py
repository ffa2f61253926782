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

from collections.abc import Mapping
from typing import Any, Literal, get_args

from prefect_prime.encoding import clean_text, decode, encode
from prefect_prime.errors import RecordRejectedError
from prefect_prime.handmade import episode

__all__ = [
    "KINDS",
    "RUN_TYPE",
    "Kind",
    "episode",
    "kind_of",
    "origin_of",
    "record_id",
    "restore",
    "stamp",
    "to_mapping",
]

Kind = Literal["episode", "trace", "sample"]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: ``run.type`` of every record of an evaluation.
RUN_TYPE = "eval"


def to_mapping(record: Any) -> Mapping[str, Any]:
    """The mapping of ``record``: itself, or what its ``to_record()`` returns.

    Raises RecordRejectedError for anything else, and where ``to_record()`` fails.
    """
    if isinstance(record, Mapping):
        return record
    kind = type(record).__name__
    convert = getattr(record, "to_record", None)
    if isinstance(record, type) or not callable(convert):
        raise RecordRejectedError(
            f"a record is a mapping or an object with to_record(), not {kind}"
        )
    try:
        mapping = convert()
    except Exception as exc:
        raise RecordRejectedError(
            f"{kind}.to_record() failed: {type(exc).__name__}: {exc}"
        ) from exc
    if not isinstance(mapping, Mapping):
        raise RecordRejectedError(
            f"{kind}.to_record() returned {type(mapping).__name__}, not a mapping"
        )
    return mapping


def kind_of(record: Mapping[str, Any]) -> Kind:
    """Which kind ``record`` is, by the keys it has."""
    if "traces" in record:
        return "episode"
    return "sample" if "sample_id" in record else "trace"


def record_id(record: Mapping[str, Any], kind: Kind) -> str:
    """The id that ``record`` is stored under: ``sample_id`` of a sample, else ``id``.

    An integer names a sample by its digits. Prime Traces takes text alone, so an
    episode or trace with another id is rejected, as is an empty or missing one.
    """
    key = "sample_id" if kind == "sample" else "id"
    value = record.get(key)
    if kind == "sample" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        found = f"it is {type(value).__name__}" if key in record else "it is missing"
        raise RecordRejectedError(f"{key} of a record of kind {kind} must be text: {found}")
    if not value:
        raise RecordRejectedError(f"{key} of a record of kind {kind} is empty")
    return clean_text(value)


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
            {**member, "run": _rekeyed(member.get("run") or stamped["run"], run_id)}
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
    return encode(_sorted(origin)).decode().removesuffix("\n")


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
