"""The platform's rules: what it limits, and what it decides where clients differ.

The public clients show which requests the real platform gets, not how it answers all
of them. Each such point is a mode, so that a client can be tried on every kind of
platform it may meet. A limit marked *assumed* has a documented code but no documented
number.
"""

from dataclasses import dataclass
from typing import Literal, get_args

MIB = 1024 * 1024
#: The largest integer that SQLite stores.
MAX_INTEGER = 2**63 - 1

#: What ``PUT /evaluations/{id}`` does with ``status``: ``accept`` closes the evaluation
#: (409 when it is closed already), ``refuse`` answers 422 and changes nothing, ``ignore``
#: answers 200 and drops the status and its message.
StatusUpdates = Literal["accept", "refuse", "ignore"]
#: Samples for a closed evaluation: stored, or 409.
ClosedSamples = Literal["accept", "refuse"]
#: A stored trace or episode id that comes again in other bytes: the newer copy replaces
#: the older, or the whole upload is refused (400 ``duplicate_trace_id``,
#: ``duplicate_episode_id``).
DuplicateTraces = Literal["replace", "refuse"]
#: Prime Traces for this account: on; 403 ``service_not_enabled``; 403 ``forbidden``.
TracesAccess = Literal["enabled", "not_enabled", "forbidden"]

#: The values each mode may have, by its name.
MODE_VALUES: dict[str, tuple[str, ...]] = {
    "status_updates": get_args(StatusUpdates),
    "closed_samples": get_args(ClosedSamples),
    "duplicate_traces": get_args(DuplicateTraces),
    "traces": get_args(TracesAccess),
}


@dataclass(frozen=True, kw_only=True)
class Modes:
    """One kind of platform. Raises ``ValueError`` on an unknown value."""

    status_updates: StatusUpdates = "accept"
    closed_samples: ClosedSamples = "accept"
    duplicate_traces: DuplicateTraces = "replace"
    traces: TracesAccess = "enabled"

    def __post_init__(self) -> None:
        for name, values in MODE_VALUES.items():
            given = getattr(self, name)
            if given not in values:
                raise ValueError(f"{name}={given!r}: use one of {', '.join(map(repr, values))}.")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Sizes in bytes and counts, all inclusive; lower ones make refusals cheap to try."""

    #: One JSON body of the evaluations API, samples above all: more is a 413.
    json_body: int = 25 * MIB
    #: One traces request as it arrives (the deployed gateway's limit): more is a 413.
    traces_body: int = 32 * MIB
    #: The uncompressed lines of one traces request: ``upload_too_large``.
    upload: int = 256 * MIB
    #: One line without its newline: ``trace_too_large``.
    line: int = 64 * MIB
    #: Episodes and traces of one request together: ``too_many_traces_in_upload``.
    upload_rows: int = 1_000_000
    #: *Assumed*: ``too_many_traces_in_episode``.
    episode_traces: int = 1_000
    #: Characters, *assumed*: ``episode_id_too_long``, ``environment_id_too_long``.
    identifier: int = 256
    #: The ``metadata`` part, *assumed*: ``invalid_metadata``.
    metadata: int = 64 * 1024
