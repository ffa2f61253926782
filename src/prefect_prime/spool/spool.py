"""The spool: every record is on disk before anything is sent, and stays until it has arrived.

``add`` turns one record into one line, appends it to the open segment of its kind and adds
it to the running metrics. A segment closes by size, by age or by ``seal``; from then on it
is a row in the ledger and a file that never changes, and memory holds nothing of it.

In the spool a record's ``run.id`` is a placeholder. It stands for the evaluation that the
record will belong to, which may not be known yet and may change, and for the producer's own
run block, which the sample rows keep.
"""

import logging
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from prefect_prime import encoding, records
from prefect_prime.errors import RecordRejectedError, SpoolError
from prefect_prime.metrics import RunSummary, SummaryAccumulator
from prefect_prime.projection import example_id
from prefect_prime.records import Kind
from prefect_prime.spool.ledger import (
    SINKS,
    Delivery,
    DeliveryState,
    Ledger,
    RecordEntry,
    Sink,
)
from prefect_prime.spool.routes import Routes, SinksSetting, routes_for
from prefect_prime.spool.segment import OpenSegment, segment_path

logger = logging.getLogger(__name__)

#: Hex digits of a producer's number in a placeholder: four billion producers.
_ORIGIN_DIGITS = 8


class Spool:
    """The spool of one evaluation, open for writing by this process alone.

    ``sinks`` decides with ``traces`` (is that service there at all?) where records go; for
    the other sinks they are entered as skipped. ``on_sealed`` is called, from the thread
    that logged, when there is something to send.
    Raises ``SpoolError`` where the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sinks: SinksSetting = "traces,samples",
        traces: bool = True,
        segment_bytes: int,
    ) -> None:
        self.folder = folder
        self.on_sealed: Callable[[], None] = lambda: None
        self._sinks: SinksSetting = sinks
        self._routes: Routes = routes_for(sinks, traces=traces)
        self._segment_bytes = segment_bytes
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.ledger = Ledger(folder / "ledger.sqlite3")
        except Exception as error:
            raise SpoolError(
                f"cannot open the spool {folder}: {error}. Set PREFECT_PRIME_SPOOL_DIR to a folder"
                " that this process may write."
            ) from error
        self._lock = threading.RLock()
        self._open: dict[Kind, OpenSegment] = {}
        self._number = max(self.ledger.segments(), default=0)
        self._metrics = SummaryAccumulator.from_state(self.ledger.fact("summary", {}))
        if (token := self.ledger.fact("token")) is None:
            token = secrets.token_hex(12)
            self.ledger.set_fact("token", token)
        self._root = f"pp{token}".encode()
        self._placeholder = re.compile(self._root + rb"([0-9a-f]{%d})" % _ORIGIN_DIGITS)
        self._latest_origin: tuple[str, int] | None = None
        self.rejected = len(self.ledger.rejections())

    # -- taking records in ------------------------------------------------------

    def add(self, record: object) -> bool:
        """Append one record; False if the same one is here already.

        Raises ``RecordRejectedError`` for a record that cannot be stored, after setting it
        aside in the ledger, and ``SpoolError`` where the disk fails.
        """
        kind: Kind | None = None
        record_id: str | None = None
        line: bytes | None = None
        try:
            mapping = records.to_mapping(record)
            kind = records.kind_of(mapping)
            record_id = records.record_id(mapping, kind)
            stamped = mapping if kind == "sample" else self._stamp(mapping)
            line = encoding.encode(stamped)
            return self._append(kind, record_id, line, stamped)
        except RecordRejectedError as error:
            with self._lock:
                self.rejected += 1
                self.ledger.reject(kind, record_id, str(error), line)
            raise

    def _stamp(self, mapping: Mapping[str, Any]) -> dict[str, Any]:
        origin = records.origin_of(mapping)
        if self._latest_origin is None or self._latest_origin[0] != origin:
            self._latest_origin = (origin, self.ledger.intern_origin(origin))
        return records.stamp(mapping, self._placeholder_for(self._latest_origin[1]))

    def _placeholder_for(self, origin: int) -> str:
        return f"{self._root.decode()}{origin:0{_ORIGIN_DIGITS}x}"

    def _append(self, kind: Kind, record_id: str, line: bytes, record: Mapping[str, Any]) -> bool:
        # The producer's own run id is no part of what a record is: a retry has a new one.
        digest = blake2b(self._placeholder.sub(self._root, line), digest_size=16).digest()
        example = None
        with_traces = kind == "episode" and bool(record["traces"])
        if with_traces:
            example = orjson.dumps(example_id(record)).decode()
        with self._lock:
            known = self._known(kind, record_id)
            if known is not None:
                if known == digest:
                    return False
                raise RecordRejectedError(
                    f"{kind} {record_id!r} was logged before with other content; the first one"
                    " stays. Log a record once, when nothing of it will change any more."
                )
            segment = self._segment_for(kind, len(line))
            rollout = None
            if example is not None:
                rollout = 1 + (segment.rollouts.get(example) or self.ledger.rollouts(example))
            entry = RecordEntry(record_id, digest, example, rollout)
            segment.append(line, entry, with_traces=with_traces)
            self._measure(kind, record_id, record)
            if segment.size >= self._segment_bytes:
                self.seal()
        return True

    def _known(self, kind: Kind, record_id: str) -> bytes | None:
        segment = self._open.get(kind)
        if segment is not None and (entry := segment.by_id.get(record_id)) is not None:
            return entry.digest
        return self.ledger.digest(kind, record_id)

    def _segment_for(self, kind: Kind, size: int) -> OpenSegment:
        segment = self._open.get(kind)
        if segment is not None and segment.size + size > self._segment_bytes:
            self.seal()
            segment = None
        if segment is None:
            self._number += 1
            segment = self._open[kind] = OpenSegment(self.folder, self._number, kind)
        return segment

    def _measure(self, kind: Kind, record_id: str, record: Mapping[str, Any]) -> None:
        try:
            self._metrics.add(kind, record)
        except Exception as error:  # noqa: BLE001 - a score that cannot be read costs its own part of a mean, never the eval
            logger.warning("%s %r does not count in the metrics: %s", kind, record_id, error)

    # -- closing segments ---------------------------------------------------------

    def seal(self) -> None:
        """Close what is open, so that it can be sent. All kinds at once: the metrics that
        are saved with them then cover the closed segments exactly.
        """
        with self._lock:
            if not self._open:
                return
            with self.ledger.transaction():
                for kind, segment in self._open.items():
                    self.ledger.close_segment(
                        segment.number,
                        kind,
                        segment.entries,
                        size=segment.size,
                        with_traces=segment.with_traces,
                        deliveries=[(sink, self._initial_state(kind, sink)) for sink in SINKS],
                    )
                self.ledger.set_fact("summary", self._metrics.state())
            for segment in self._open.values():
                segment.close()
            self._open.clear()
        self.on_sealed()

    def _initial_state(self, kind: Kind, sink: Sink) -> DeliveryState:
        return "pending" if sink in self._routes[kind] else "skipped"

    def oldest(self) -> float | None:
        """The age in seconds of the oldest open segment, None where none is open."""
        # No lock: the uploader asks this under its own, which `on_sealed` takes under ours.
        return max((segment.age() for segment in list(self._open.values())), default=None)

    def traces_off(self) -> None:
        """Traces turned out to be off for this account: nothing was ever to go there."""
        with self._lock:
            self._routes = routes_for(self._sinks, traces=False)
            with self.ledger.transaction():
                self.ledger.skip_pending("traces")
                if self._sinks == "auto":
                    self.ledger.claim_skipped("samples", "episode")
        self.on_sealed()

    # -- what is here ---------------------------------------------------------------

    def count(self, kind: Kind) -> int:
        """How many records of a kind were taken in."""
        with self._lock:
            segment = self._open.get(kind)
            return self.ledger.count(kind) + (len(segment.entries) if segment else 0)

    def unsealed(self, sink: Sink) -> int:
        """How many records in open segments are meant for a sink."""
        with self._lock:
            return sum(
                len(segment.entries)
                for kind, segment in self._open.items()
                if self._initial_state(kind, sink) == "pending"
            )

    def summary(self) -> RunSummary:
        """The metrics over everything taken in."""
        with self._lock:
            return self._metrics.summary()

    # -- reading a closed segment -----------------------------------------------------

    def payload(self, delivery: Delivery, evaluation_id: str) -> bytes:
        """A closed segment's lines, as records of the given evaluation."""
        data = segment_path(self.folder, delivery.segment, delivery.kind).read_bytes()
        # Evaluation ids come from a service: whatever is in them stays inside the string.
        return self._placeholder.sub(lambda _: orjson.dumps(evaluation_id)[1:-1], data)

    def lines(self, delivery: Delivery) -> list[bytes]:
        """A closed segment's lines as they lie there, without their line ends."""
        data = segment_path(self.folder, delivery.segment, delivery.kind).read_bytes()
        return data.split(b"\n")[:-1]

    def episodes(self, delivery: Delivery) -> list[tuple[dict[str, Any], int | None]]:
        """A closed segment's episodes as their producer wrote them, with rollout numbers."""
        numbers = self.ledger.rollout_numbers(delivery.segment)
        lines = self.lines(delivery)
        return [(self._unstamp(line), number) for line, number in zip(lines, numbers, strict=True)]

    def _unstamp(self, line: bytes) -> dict[str, Any]:
        record: dict[str, Any] = encoding.decode(line)
        found = self._placeholder.fullmatch(record["run"]["id"].encode())
        if found is None:
            raise SpoolError(f"{self.folder} holds a line that is not of this spool")
        return records.restore(record, self.ledger.origin(int(found[1], 16)))

    def close(self) -> None:
        """Close the files. Nothing is removed; what is unsealed is sealed first."""
        self.seal()
        self.ledger.close()
