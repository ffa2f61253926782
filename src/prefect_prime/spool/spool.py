"""The spool: every record is on disk before anything is sent, and stays until it has arrived.

``add`` turns one record into one line, appends it to the open segment of its kind and adds
it to the running metrics. A segment closes by size, by age or by ``seal``; from then on it
is a row in the ledger and a file that never changes, and memory holds nothing of it.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from prefect_prime import encoding, records
from prefect_prime.errors import RecordRejectedError, SpoolError
from prefect_prime.metrics import RunSummary, SummaryAccumulator
from prefect_prime.natural import clean_text, shown
from prefect_prime.projection import example_id
from prefect_prime.records import Kind
from prefect_prime.spool import store
from prefect_prime.spool.deliveries import SINKS, Delivery, DeliveryState, Sink, Tally
from prefect_prime.spool.lease import Lease
from prefect_prime.spool.ledger import Ledger, RecordEntry
from prefect_prime.spool.routes import Routes, SinksSetting, routes_for
from prefect_prime.spool.segment import OpenSegment, recover_lines, segment_path, whole_lines
from prefect_prime.spool.stamping import Stamping

logger = logging.getLogger(__name__)

#: Of a record's sha256: enough to tell as many records as a disk holds.
_DIGEST_BYTES = 16
#: Bytes of a closed segment: they stay in a processor's cache, and hold up no other thread.
_READ_AT_ONCE = 512 * 1024
#: Seconds between two tries to take a folder that another process holds.
_POLL = 0.1


class Spool:
    """The spool of one evaluation, open for writing by this process alone.

    ``sinks`` decides with ``traces`` (is that service there at all?) where records go; for
    the other sinks they are entered as skipped. ``on_sealed`` is called, from the thread
    that logged, when there is something to send. ``patience`` is how many seconds another
    process that holds the folder is waited for. ``left``: only what somebody left is opened.
    Raises ``SpoolError`` where the folder cannot be written, or is not there any more.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sinks: SinksSetting = "traces,samples",
        traces: bool = True,
        segment_bytes: int,
        fsync: bool = False,
        patience: float = 0.0,
        left: bool = False,
    ) -> None:
        self.folder = folder
        self.on_sealed: Callable[[], None] = lambda: None
        self._sinks: SinksSetting = sinks
        self._routes: Routes = routes_for(sinks, traces=traces)
        self._segment_bytes = segment_bytes
        try:
            lease = Lease.take(folder) if left else _take(folder, patience)
        except OSError as error:
            raise self._unusable(error) from error
        if lease is None:
            raise SpoolError(
                f"the spool {folder} is in use: another process is still running this eval"
                if folder.exists()
                else f"the spool {folder} is gone: another process has finished this eval"
            )
        self._lease = lease
        self._lock = threading.RLock()
        self._open: dict[Kind, OpenSegment] = {}
        self._fsync = fsync
        #: Whether the ledger took no segment lately.
        self._stuck = False
        try:
            self.ledger = Ledger(folder / "ledger.sqlite3", fsync=fsync)
            self._number = max(self.ledger.segments(), default=0)
            self._metrics = SummaryAccumulator.from_state(self.ledger.fact("summary", {}))
            self._stamping = Stamping(self.ledger)
            self.rejected = len(self.ledger.rejections())
            self._recover()
        except (OSError, sqlite3.Error, SpoolError) as error:
            lease.release()
            raise self._unusable(error) from error
        except BaseException:
            lease.release()
            raise

    def _unusable(self, error: Exception) -> SpoolError:
        return SpoolError(
            f"cannot open the spool {self.folder}: {error}. Set PREFECT_PRIME_SPOOL_DIR to a folder"
            " that this process may write, on a disk that has room."
        )

    def _recover(self) -> None:
        """Take in what a dead process left in segments that it had not closed.

        Their lines go the way of new records. Should this process die on the way, the next
        one does it again: the ledger has all of it or nothing.
        """
        for name in self.ledger.fact("recovered", []):  # and died before they were removed
            (self.folder / name).unlink(missing_ok=True)
        known = self.ledger.segments()
        left = [
            path for path in sorted(self.folder.glob("*.*.jsonl")) if _number(path) not in known
        ]
        self._number = max([self._number, *map(_number, left)])
        with self.ledger.transaction():
            for path in left:
                kind = next(kind for kind in records.KINDS if path.name.endswith(f".{kind}.jsonl"))
                lines, torn = recover_lines(path)
                if torn:
                    self.count_torn()
                    logger.warning("%s: its last record was torn by the death of its writer", path)
                for line in lines:
                    self._take_in_again(kind, line + b"\n")
            self._seal()
            self.ledger.set_fact("recovered", [path.name for path in left])
        for path in left:
            path.unlink()

    def _take_in_again(self, kind: Kind, line: bytes) -> None:
        try:
            record = encoding.decode(line)
            self._append(kind, records.record_id(record, kind), line, record)
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
        ) as error:  # the disk itself is damaged
            self.set_aside(kind, None, f"unreadable after a crash: {error}", line)

    @property
    def torn(self) -> int:
        """Records that were being written when their writer died."""
        return int(self.ledger.fact("torn", 0))

    def count_torn(self) -> None:
        """One more record was being written when its writer died."""
        with self.ledger.transaction():
            self.ledger.set_fact("torn", self.torn + 1)

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
            placeholder: bytes | None = b""
            if kind != "sample":
                mapping, placeholder = self._stamping.stamp(mapping)
            line = encoding.encode(mapping)
            return self._append(kind, record_id, line, mapping, placeholder)
        except RecordRejectedError as error:
            self.set_aside(kind, record_id, str(error), line)
            raise
        except sqlite3.Error as error:
            raise SpoolError(f"cannot write to the spool {self.folder}: {error}") from error

    def set_aside(
        self, kind: Kind | None, record_id: str | None, reason: str, line: bytes | None = None
    ) -> None:
        """Keep that a record could not be stored, and why."""
        with self._lock:
            self.rejected += 1
            try:
                self.ledger.reject(kind, record_id, clean_text(reason), line)
            except sqlite3.Error as error:
                logger.warning(
                    "the reason why %s %r was set aside is lost: %s", kind, record_id, error
                )

    def _append(
        self,
        kind: Kind,
        record_id: str,
        line: bytes,
        record: Mapping[str, Any],
        placeholder: bytes | None = None,
    ) -> bool:
        digest = sha256(self._stamping.without_producer(line, placeholder)).digest()[:_DIGEST_BYTES]
        record = records.outline(record, kind)
        traces = records.trace_ids(record, kind, record_id)
        example = None
        with_traces = kind == "episode" and bool(record["traces"])
        if with_traces:
            example = encoding.dumps(example_id(record)).decode()
        with self._lock:
            known = self._known(kind, record_id)
            if known is not None:
                if known == digest:
                    return False
                raise RecordRejectedError(
                    f"{kind} {shown(record_id)} was logged before with other content; the first one"
                    " stays. Log a record once, when nothing of it will change any more."
                )
            self._refuse_known(traces if kind == "episode" else (record_id,), kind)
            segment = self._segment_for(kind, len(line))
            rollout = None
            if example is not None:
                rollout = 1 + (segment.rollouts.get(example) or self.ledger.rollouts(example))
            entry = RecordEntry(record_id, digest, example, rollout, traces)
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

    def _refuse_known(self, traces: tuple[str, ...], kind: Kind) -> None:
        """Prime Traces refuses a whole upload for one trace id that is in it twice."""
        if kind == "sample" or not traces:
            return
        open_episodes, open_traces = self._open.get("episode"), self._open.get("trace")
        found: tuple[str, str | None] | None = None
        for trace in traces:
            if open_episodes is not None and trace in open_episodes.members:
                found = trace, open_episodes.members[trace]
            elif open_traces is not None and trace in open_traces.by_id:
                found = trace, None
        found = found or self.ledger.holder(traces)
        if found is not None:
            trace, episode = found
            where = "logged by itself" if episode is None else f"in episode {shown(episode)}"
            raise RecordRejectedError(
                f"trace id {shown(trace)} is already {where}; that one stays. A trace has an id"
                " of its own, and is logged once."
            )

    def _segment_for(self, kind: Kind, size: int) -> OpenSegment:
        segment = self._open.get(kind)
        if segment is not None and segment.size + size > self._segment_bytes and self.seal():
            segment = None
        if segment is None:
            self._number += 1
            segment = self._open[kind] = OpenSegment(
                self.folder, self._number, kind, fsync=self._fsync
            )
        return segment

    def _measure(self, kind: Kind, record_id: str, record: Mapping[str, Any]) -> None:
        try:
            self._metrics.add(kind, record)
        except Exception as error:  # noqa: BLE001 - a score that cannot be read costs its own part of a mean, never the eval
            logger.warning("%s %r does not count in the metrics: %s", kind, record_id, error)

    # -- closing segments ---------------------------------------------------------

    def seal(self) -> bool:
        """Close what is open, so that it can be sent; False where the disk does not let us.

        What is open stays so then, whole, and is closed with what comes later.
        """
        with self._lock:
            if not self._open:
                return True
            try:
                self._seal()
            except sqlite3.Error as error:
                if not self._stuck:
                    logger.warning("%s: nothing can be sent for now: %s", self.folder, error)
                self._stuck = True
                return False
            self._stuck = False
        self.on_sealed()
        return True

    def _seal(self) -> None:
        """All kinds at once: the metrics that are saved with them then cover the closed
        segments exactly.
        """
        with self.ledger.transaction():
            for kind, segment in self._open.items():
                self.ledger.close_segment(
                    segment.number,
                    kind,
                    segment.entries,
                    size=segment.size,
                    with_traces=segment.with_traces,
                    states=[(sink, self._initial_state(kind, sink)) for sink in SINKS],
                )
            self.ledger.set_fact("summary", self._metrics.state())
        for segment in self._open.values():
            segment.close()
        self._open.clear()

    def _initial_state(self, kind: Kind, sink: Sink) -> DeliveryState:
        return "pending" if sink in self._routes[kind] else "skipped"

    def oldest(self) -> float | None:
        """The age in seconds of the oldest open segment, None where none is open."""
        # No lock: the uploader asks this under its own, which `on_sealed` takes under ours.
        return max((segment.age() for segment in list(self._open.values())), default=None)

    def send_again(self) -> None:
        """Everything is to be sent once more: into another evaluation."""
        with self._lock:
            self.ledger.deliveries.reopen(self._initial_state)

    def traces_off(self) -> None:
        """Traces turned out to be off for this account: nothing was ever to go there."""
        with self._lock:
            self._routes = routes_for(self._sinks, traces=False)
            with self.ledger.transaction():
                self.ledger.deliveries.skip_pending("traces")
                if self._sinks == "auto":
                    self.ledger.deliveries.claim_skipped("samples", "episode")
        self.on_sealed()

    # -- what is here ---------------------------------------------------------------

    def count(self, kind: Kind) -> int:
        """How many records of a kind were taken in."""
        with self._lock:
            segment = self._open.get(kind)
            return self.ledger.count(kind) + (len(segment.entries) if segment else 0)

    def rollouts(self) -> dict[Any, int]:
        """How many rollouts of each example were taken in, by the example's id."""
        with self._lock:
            counts = self.ledger.examples()
            for segment in self._open.values():
                counts.update(segment.rollouts)
        return {encoding.decode(example.encode()): count for example, count in counts.items()}

    def tally(self, sink: Sink) -> Tally:
        """What became of all records for one sink, those in open segments included."""
        with self._lock:
            known = self.ledger.deliveries.tally(sink)
            unsealed = {"pending": 0, "skipped": 0}
            for kind, segment in self._open.items():
                unsealed[self._initial_state(kind, sink)] += len(segment.entries)
        return replace(
            known,
            pending=known.pending + unsealed["pending"],
            skipped=known.skipped + unsealed["skipped"],
        )

    def summary(self) -> RunSummary:
        """The metrics over everything taken in."""
        return self.counted().summary()

    def counted(self, elsewhere: Iterable[SummaryAccumulator] = ()) -> SummaryAccumulator:
        """What the metrics are made of, with what was counted ``elsewhere``."""
        whole = SummaryAccumulator.from_state(self.summary_state())
        for counted in elsewhere:
            whole.merge(counted)
        return whole

    def summary_state(self) -> dict[str, Any]:
        """What the metrics were made of, as another process can go on from."""
        with self._lock:
            return self._metrics.state()

    @property
    def token(self) -> str:
        """What tells this spool from every other one."""
        return str(self.ledger.fact("token"))

    # -- reading a closed segment -----------------------------------------------------

    def payload(self, delivery: Delivery, evaluation_id: str) -> Iterator[bytes]:
        """A closed segment's lines, as records of the given evaluation; some at a time."""
        path = segment_path(self.folder, delivery.segment, delivery.kind)
        return self._stamping.fill_in(whole_lines(path, _READ_AT_ONCE), evaluation_id)

    def lines(self, delivery: Delivery) -> list[bytes]:
        """A closed segment's lines as they lie there, without their line ends."""
        data = segment_path(self.folder, delivery.segment, delivery.kind).read_bytes()
        return data.split(b"\n")[:-1]

    def episode(self, line: bytes) -> dict[str, Any]:
        """An episode of a closed segment as its producer wrote it. Raises ``ValueError`` for a
        line that is damaged or another spool's.
        """
        return self._stamping.take_off(line)

    def close(self, *, remove: bool = False) -> None:
        """Close the files; what is unsealed is sealed first. ``remove``: nothing of the spool
        is needed any more.
        """
        self.seal()
        self.ledger.close()
        if remove:  # while nobody else can have it
            store.remove(self.folder)
        self._lease.release()


def _take(folder: Path, patience: float) -> Lease | None:
    """The lease on a folder, waiting for whoever holds it, and may remove it then."""
    deadline = time.monotonic() + patience
    while True:
        store.private(folder)
        if (lease := Lease.take(folder)) is not None or time.monotonic() > deadline:
            return lease
        time.sleep(_POLL)


def _number(path: Path) -> int:
    return int(path.name.partition(".")[0])
