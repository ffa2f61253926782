"""What a closed segment becomes on the wire, for each sink.

Traces: the segment's own lines. Samples: one row per episode, cut into requests by the
exact size of their JSON. Both are the same bytes however often they are made, so that a
request can be told from another by its digest, and a later process can go on in the middle.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from prefect_prime import encoding
from prefect_prime.projection import MAX_REQUEST_BYTES, sample_rows
from prefect_prime.spool.deliveries import Delivery
from prefect_prime.spool.spool import Spool

_HEAD, _TAIL = b'{"samples":[', b"]}"


@dataclass(frozen=True, slots=True)
class SamplesRequest:
    """One request body, its rows, and how many records are whole once it is stored."""

    body: bytes
    records: int
    rows: int


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
    whole = rows = 0

    def close() -> None:
        nonlocal body, whole, rows
        if rows:
            plan.requests.append(SamplesRequest(bytes(body) + _TAIL, whole, rows))
        body, whole, rows = bytearray(_HEAD), 0, 0

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
            if rows:
                body += b","
            body += row
            rows += 1
        whole += bool(fitting) and not incomplete
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
