"""What a closed segment becomes on the wire, for each sink.

Traces: the segment's own lines. Samples: one row per episode, cut into requests by the
exact size of their JSON. Both are the same bytes however often they are made, so that a
request can be told from another by its digest, and a later process can go on in the middle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from prefect_prime import encoding
from prefect_prime.projection import MAX_REQUEST_BYTES, sample_rows
from prefect_prime.spool.deliveries import Delivery
from prefect_prime.spool.spool import Spool

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
    """The requests of one segment, and the records that have no place in any."""

    requests: list[SamplesRequest] = field(default_factory=list)
    without_row: int = 0
    oversized: list[str] = field(default_factory=list)


def content_digest(evaluation_id: str, sink: str, data: bytes) -> str:
    """Hex sha256 that is the same exactly for the same upload into the same evaluation."""
    digest = sha256(f"{len(evaluation_id)}:{evaluation_id}:{sink}:".encode())
    digest.update(data)
    return digest.hexdigest()


def plan_samples(spool: Spool, delivery: Delivery, limit: int = MAX_REQUEST_BYTES) -> SamplesPlan:
    """Cut a segment's rows into requests of at most ``limit`` bytes of JSON each.

    A record that none can hold whole is named in ``oversized``; its neighbours are not harmed.
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

    for projected in _projected(spool, delivery):
        fitting = [row for row in projected.rows if len(_HEAD) + len(row) + len(_TAIL) <= limit]
        incomplete = projected.oversized or len(fitting) < len(projected.rows)
        if incomplete:
            plan.oversized.append(projected.record_id)
        elif not fitting:
            plan.without_row += 1
        for row in fitting:
            if len(body) + len(row) + 1 + len(_TAIL) > limit:
                close()
            if owners:
                body.extend(b",")
            body.extend(row)
            owners.append(projected.record_id)
        if fitting and not incomplete:
            completes.append(projected.record_id)
    close()
    return plan


@dataclass(frozen=True, slots=True)
class _Projected:
    """The encoded rows of one record; ``oversized`` if some of it has no row."""

    record_id: str
    rows: list[bytes]
    oversized: bool = False


def _projected(spool: Spool, delivery: Delivery) -> Iterator[_Projected]:
    """What each record of a segment becomes, in the order of its lines."""
    if delivery.kind == "sample":
        for line in spool.lines(delivery):
            yield _Projected(str(encoding.decode(line)["sample_id"]), [line])
        return
    for episode, rollout in spool.episodes(delivery):
        projection = sample_rows(episode, rollout or 1)
        rows = [encoding.dumps(row) for row in projection.rows]
        yield _Projected(str(episode["id"]), rows, bool(projection.oversized))
