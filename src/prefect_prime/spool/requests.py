"""What a closed segment becomes on the wire, for each sink.

Traces: the segment's own lines. Samples: one row per episode, cut into requests by the
exact size of their JSON. Both are the same bytes however often they are made, so that a
request can be told from another by its digest, and a later process can go on in the middle.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from prefect_prime import encoding
from prefect_prime.natural import described, shown
from prefect_prime.projection import MAX_REQUEST_BYTES, sample_rows
from prefect_prime.spool.deliveries import Delivery
from prefect_prime.spool.spool import Spool

_MIB = 1024 * 1024
_HEAD, _TAIL = b'{"samples":[', b"]}"


@dataclass(frozen=True, slots=True)
class SamplesRequest:
    """One request body; the record that each of its rows is of, by its id; and the records
    that are whole once it is stored.
    """

    body: bytes
    owners: tuple[str, ...]
    completes: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        """The rows themselves."""
        rows: list[dict[str, Any]] = encoding.decode(self.body)["samples"]
        return rows

    def part(self, positions: Sequence[int]) -> bytes:
        """The body of a request for some of the rows, or for all."""
        if len(positions) == len(self.owners):
            return self.body
        rows = self.rows()
        return encoding.dumps({"samples": [rows[position] for position in positions]})


@dataclass(slots=True)
class SamplesPlan:
    """The requests of one segment; how many records have no row; and the records that are not
    whole in any request, by id, with the reasons.
    """

    requests: list[SamplesRequest] = field(default_factory=list)
    without_row: int = 0
    unfit: dict[str, str] = field(default_factory=dict)


def content_digest(evaluation_id: str, sink: str, data: bytes) -> str:
    """Hex sha256 that is the same exactly for the same upload into the same evaluation."""
    digest = sha256(f"{len(evaluation_id)}:{evaluation_id}:{sink}:".encode())
    digest.update(data)
    return digest.hexdigest()


def plan_samples(spool: Spool, delivery: Delivery, limit: int = MAX_REQUEST_BYTES) -> SamplesPlan:
    """Cut a segment's rows into requests of at most ``limit`` bytes of JSON each.

    A record that none can hold whole is named in ``unfit``, as is one that has no projection;
    neighbours are not harmed.
    """
    plan = SamplesPlan()
    body = bytearray(_HEAD)
    owners: list[str] = []
    completes: list[str] = []

    def close() -> None:
        if owners:
            body.extend(_TAIL)
            plan.requests.append(SamplesRequest(bytes(body), tuple(owners), tuple(completes)))
        body[:] = _HEAD
        owners.clear()
        completes.clear()

    for projected in _projected(spool, delivery, limit):
        if projected.unfit is not None:
            plan.unfit[projected.record_id] = projected.unfit
        elif not projected.rows:
            plan.without_row += 1
        for row in projected.rows:
            if len(body) + len(row) + 1 + len(_TAIL) > limit:
                close()
            if owners:
                body.extend(b",")
            body.extend(row)
            owners.append(projected.record_id)
        if projected.rows and projected.unfit is None:
            completes.append(projected.record_id)
    close()
    return plan


@dataclass(frozen=True, slots=True)
class _Projected:
    """The encoded rows of one record, each of which fits; and why they are not all of it."""

    record_id: str
    rows: list[bytes] = field(default_factory=list)
    unfit: str | None = None


def _projected(spool: Spool, delivery: Delivery, limit: int) -> Iterator[_Projected]:
    """What each record of a segment becomes, in the order of its lines."""
    ids = spool.ledger.record_ids(delivery.segment)
    numbers = spool.ledger.rollout_numbers(delivery.segment)
    for record_id, number, line in zip(ids, numbers, spool.lines(delivery), strict=True):
        try:
            if delivery.kind == "sample":
                yield _whole(record_id, line, limit)
            else:
                yield _projected_episode(record_id, spool.episode(line), number or 1, limit)
        except Exception as error:  # noqa: BLE001 - whatever is in it, it costs no other record
            yield _Projected(record_id, unfit=f"has no sample row: {described(error)}")


def _whole(record_id: str, line: bytes, limit: int) -> _Projected:
    size = len(_HEAD) + len(line) + len(_TAIL)
    if size > limit:
        return _Projected(record_id, unfit=_too_large("its row", size, limit))
    return _Projected(record_id, [line])


def _projected_episode(
    record_id: str, episode: Mapping[str, Any], rollout: int, limit: int
) -> _Projected:
    projection = sample_rows(episode, rollout, limit)
    if not projection.oversized:
        return _Projected(record_id, projection.lines)
    trace, size = max(projection.oversized.items(), key=lambda item: item[1])
    count = len(projection.oversized)
    others = f", as for {count - 1} more of its traces" if count > 1 else ""
    return _Projected(
        record_id, projection.lines, _too_large(f"trace {shown(trace)}", size, limit) + others
    )


def _too_large(what: str, size: int, limit: int) -> str:
    """A size with its limit; both in bytes where they are close."""
    sizes = f"{size / _MIB:.1f} MiB, and the samples table takes {limit / _MIB:.0f} MiB"
    if limit < _MIB or size < limit + _MIB:
        sizes = f"{size:,} bytes, and the samples table takes {limit:,}"
    return f"too large: {what} needs a request of {sizes}"
