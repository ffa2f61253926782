"""The ledger: what is known of one spool, in one SQLite file that outlives the process.

It holds which segments are closed, what each sink made of them, every record's id and
digest, and the few facts that a later process needs to go on: the spool's token, the
evaluation, the sums of the metrics. It never holds a credential.

One connection, guarded by one lock: every statement is short, and SQLite allows one
writer anyway. WAL, so that another process may read while the owner writes.
"""

import ctypes
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

import orjson

from prefect_prime.records import Kind

Sink = Literal["traces", "samples"]
SINKS: tuple[Sink, ...] = ("traces", "samples")

#: pending: still to be sent. acknowledged: the service has it. failed: it will never be
#: stored. refused: the credentials were not good enough; new ones may be. skipped: this
#: sink is off for this account, so there was nowhere for it to go.
DeliveryState = Literal["pending", "acknowledged", "failed", "refused", "skipped"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (
    key TEXT PRIMARY KEY, value BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS segments (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, records INTEGER NOT NULL,
    with_traces INTEGER NOT NULL, bytes INTEGER NOT NULL, closed_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS deliveries (
    segment INTEGER NOT NULL, sink TEXT NOT NULL, state TEXT NOT NULL,
    begun INTEGER NOT NULL DEFAULT 0, requests INTEGER NOT NULL DEFAULT 0,
    rows INTEGER NOT NULL DEFAULT 0, stored INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0, skipped INTEGER NOT NULL DEFAULT 0,
    detail TEXT, changed_at REAL NOT NULL,
    PRIMARY KEY (segment, sink)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS deliveries_by_state ON deliveries (state, sink, segment);
CREATE TABLE IF NOT EXISTS records (
    kind TEXT NOT NULL, id TEXT NOT NULL, digest BLOB NOT NULL,
    segment INTEGER NOT NULL, position INTEGER NOT NULL, example TEXT, rollout INTEGER,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS records_by_position ON records (segment, position);
CREATE INDEX IF NOT EXISTS records_by_example ON records (example);
CREATE TABLE IF NOT EXISTS origins (
    number INTEGER PRIMARY KEY, value TEXT NOT NULL UNIQUE
);
CREATE TABLE IF NOT EXISTS rejections (
    at REAL NOT NULL, kind TEXT NOT NULL, id TEXT, reason TEXT NOT NULL, line BLOB
);
"""


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """One record of a segment: its identity, and its place among its example's rollouts."""

    id: str
    digest: bytes
    example: str | None
    rollout: int | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """One closed segment on its way to one sink.

    ``requests`` of it are answered already, and with them ``stored`` of its ``records``. One
    more may be ``begun``: whether the service has it is not known.
    """

    segment: int
    kind: Kind
    sink: Sink
    records: int
    bytes: int
    requests: int = 0
    stored: int = 0
    begun: int = 0
    changed_at: float = 0.0

    @property
    def in_doubt(self) -> bool:
        """Whether the answer to a request was lost, with its connection or its sender."""
        return self.begun > self.requests


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of the records that one sink was given, in records."""

    stored: int = 0
    failed: int = 0
    skipped: int = 0
    pending: int = 0


_open_ledgers: "WeakSet[Ledger]" = WeakSet()


def _keep_in_child() -> None:
    """After a fork, keep the child from ever closing its copies of the parent's connections.

    Closing one may delete the log that the parent still writes, and SQLite knows no way to let
    one go unclosed.
    """
    for ledger in _open_ledgers:
        ledger.leak()


os.register_at_fork(after_in_child=_keep_in_child)


class Ledger:
    """The open ledger of one spool folder. Raises ``sqlite3.Error`` where the disk does; to open
    it, ``OSError`` too.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self._lock = threading.RLock()
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # its logs follow it
        self._connection = sqlite3.connect(
            path, check_same_thread=False, isolation_level=None, timeout=30.0
        )
        self._connection.execute("PRAGMA journal_mode=WAL")
        # Segments are written without fsync too: both survive the death of the process.
        self._connection.execute(f"PRAGMA synchronous={'FULL' if fsync else 'NORMAL'}")
        self._connection.executescript(_SCHEMA)
        _open_ledgers.add(self)

    def close(self) -> None:
        """Close the file. The ledger cannot be used afterwards."""
        with self._lock:
            self._connection.close()

    def leak(self) -> None:
        """Make the connection outlive every reference to it, unclosed."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing for the statements inside; threads wait for each other."""
        with self._lock:
            if self._connection.in_transaction:  # nested: the outer one decides
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk may have ended it already
                    self._connection.execute("ROLLBACK")
                raise

    def _rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(sql, parameters).fetchall()

    # -- facts ---------------------------------------------------------------

    def fact(self, key: str, default: Any = None) -> Any:
        """A JSON value by name, or ``default``."""
        rows = self._rows("SELECT value FROM facts WHERE key = ?", (key,))
        return orjson.loads(rows[0][0]) if rows else default

    def set_fact(self, key: str, value: Any) -> None:
        """Keep a JSON value under a name, over what was there."""
        with self.transaction():
            self._connection.execute(
                "INSERT INTO facts VALUES (?, ?)"
                " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (key, orjson.dumps(value)),
            )

    # -- segments and records ------------------------------------------------

    def segments(self) -> set[int]:
        """The numbers of the closed segments."""
        return {number for (number,) in self._rows("SELECT number FROM segments")}

    def close_segment(
        self,
        number: int,
        kind: Kind,
        entries: Sequence[RecordEntry],
        *,
        size: int,
        with_traces: int,
        deliveries: Iterable[tuple[Sink, DeliveryState]],
    ) -> None:
        """Enter a closed segment: its records, and where each sink stands with it."""
        now = time.time()
        with self.transaction():
            self._connection.execute(
                "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?)",
                (number, kind, len(entries), with_traces, size, now),
            )
            self._connection.executemany(
                "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (kind, entry.id, entry.digest, number, position, entry.example, entry.rollout)
                    for position, entry in enumerate(entries)
                ],
            )
            self._connection.executemany(
                "INSERT INTO deliveries (segment, sink, state, skipped, changed_at)"
                " VALUES (?, ?, ?, ?, ?)",
                [
                    (number, sink, state, len(entries) if state == "skipped" else 0, now)
                    for sink, state in deliveries
                ],
            )

    def digest(self, kind: Kind, record_id: str) -> bytes | None:
        """The digest under which a record of a closed segment was stored, if it was."""
        rows = self._rows("SELECT digest FROM records WHERE kind = ? AND id = ?", (kind, record_id))
        return rows[0][0] if rows else None

    def rollouts(self, example: str) -> int:
        """How many rollouts of an example the closed segments hold."""
        rows = self._rows("SELECT max(rollout) FROM records WHERE example = ?", (example,))
        return rows[0][0] or 0

    def rollout_numbers(self, segment: int) -> list[int | None]:
        """The rollout number of each record of a segment, in the order of its lines."""
        sql = "SELECT rollout FROM records WHERE segment = ? ORDER BY position"
        return [rollout for (rollout,) in self._rows(sql, (segment,))]

    def count(self, kind: Kind) -> int:
        """How many records of a kind the closed segments hold."""
        rows = self._rows("SELECT coalesce(sum(records), 0) FROM segments WHERE kind = ?", (kind,))
        return int(rows[0][0])

    # -- the producers' own run blocks ----------------------------------------

    def intern_origin(self, origin: str) -> int:
        """The number of a producer's run block, the same for equal ones."""
        with self.transaction():
            self._connection.execute("INSERT OR IGNORE INTO origins (value) VALUES (?)", (origin,))
            return int(self._rows("SELECT number FROM origins WHERE value = ?", (origin,))[0][0])

    def origin(self, number: int) -> str:
        """The producer's run block behind a number."""
        rows = self._rows("SELECT value FROM origins WHERE number = ?", (number,))
        return str(rows[0][0])

    # -- deliveries ------------------------------------------------------------

    def pending(self, sink: Sink, limit: int) -> list[Delivery]:
        """The oldest segments that still have to go to a sink."""
        sql = (
            "SELECT number, kind, sink, records, bytes, requests, stored, begun, changed_at"
            " FROM deliveries JOIN segments ON number = segment"
            " WHERE state = 'pending' AND sink = ? ORDER BY segment LIMIT ?"
        )
        return [Delivery(*row) for row in self._rows(sql, (sink, limit))]

    def begin(self, segment: int, sink: Sink, request: int) -> None:
        """Note that a request, counted from 1, is about to be sent."""
        with self.transaction():
            self._connection.execute(
                "UPDATE deliveries SET begun = ?, changed_at = ? WHERE segment = ? AND sink = ?",
                (request, time.time(), segment, sink),
            )

    def progress(self, segment: int, sink: Sink, *, requests: int, rows: int, stored: int) -> None:
        """Note that so many requests are answered, and no further one was processed."""
        with self.transaction():
            self._connection.execute(
                "UPDATE deliveries SET begun = ?, requests = ?, rows = ?, stored = ?,"
                " changed_at = ? WHERE segment = ? AND sink = ?",
                (requests, requests, rows, stored, time.time(), segment, sink),
            )

    def rows(self, sink: Sink) -> int:
        """How many rows the evaluation surely got from here."""
        sql = "SELECT coalesce(sum(rows), 0) FROM deliveries WHERE sink = ?"
        return int(self._rows(sql, (sink,))[0][0])

    def settle(
        self,
        segment: int,
        sink: Sink,
        state: DeliveryState,
        *,
        stored: int = 0,
        failed: int = 0,
        skipped: int = 0,
        detail: str | None = None,
    ) -> None:
        """Enter how a delivery ended, in records per outcome."""
        with self.transaction():
            self._connection.execute(
                "UPDATE deliveries SET state = ?, stored = ?, failed = ?, skipped = ?, detail = ?,"
                " changed_at = ? WHERE segment = ? AND sink = ?",
                (state, stored, failed, skipped, detail, time.time(), segment, sink),
            )

    def skip_pending(self, sink: Sink) -> None:
        """A sink turned out to be off: nothing of what waits for it was ever to go there."""
        with self.transaction():
            self._connection.execute(
                "UPDATE deliveries SET state = 'skipped', changed_at = ?, skipped ="
                " (SELECT records FROM segments WHERE number = segment)"
                " WHERE sink = ? AND state = 'pending'",
                (time.time(), sink),
            )

    def claim_skipped(self, sink: Sink, kind: Kind) -> None:
        """A sink turned out to be needed: what passed it by is to go there after all."""
        with self.transaction():
            self._connection.execute(
                "UPDATE deliveries SET state = 'pending', skipped = 0, changed_at = ?"
                " WHERE sink = ? AND state = 'skipped'"
                " AND segment IN (SELECT number FROM segments WHERE kind = ?)",
                (time.time(), sink, kind),
            )

    def tally(self, sink: Sink) -> Tally:
        """The outcome of all closed segments for one sink; refused ones count as failed."""
        sql = (
            "SELECT coalesce(sum(stored), 0),"
            " coalesce(sum(CASE state WHEN 'refused' THEN records - stored ELSE failed END), 0),"
            " coalesce(sum(skipped), 0),"
            " coalesce(sum(CASE state WHEN 'pending' THEN records - stored ELSE 0 END), 0)"
            " FROM deliveries JOIN segments ON number = segment WHERE sink = ?"
        )
        return Tally(*self._rows(sql, (sink,))[0])

    def episodes_written(self) -> int:
        """Episodes with at least one trace that the traces service acknowledged."""
        sql = (
            "SELECT coalesce(sum(with_traces), 0) FROM deliveries JOIN segments ON number = segment"
            " WHERE sink = 'traces' AND state = 'acknowledged' AND kind = 'episode'"
        )
        return int(self._rows(sql)[0][0])

    def reopen(self, states: Callable[[Kind, Sink], DeliveryState]) -> None:
        """Everything is to be sent once more: into another evaluation."""
        now = time.time()
        with self.transaction():
            for number, kind, count in self._rows("SELECT number, kind, records FROM segments"):
                for sink in SINKS:
                    state = states(kind, sink)
                    self._connection.execute(
                        "UPDATE deliveries SET state = ?, begun = 0, requests = 0, rows = 0,"
                        " stored = 0, failed = 0, skipped = ?, detail = NULL, changed_at = ?"
                        " WHERE segment = ? AND sink = ?",
                        (state, count if state == "skipped" else 0, now, number, sink),
                    )

    def examples(self) -> dict[str, int]:
        """By example, as JSON: how many rollouts of it the closed segments hold."""
        sql = "SELECT example, max(rollout) FROM records WHERE example IS NOT NULL GROUP BY example"
        return dict(self._rows(sql))

    def failures(self) -> list[tuple[Sink, int, str]]:
        """What sinks did not store for good, the oldest first: sink, records, cause."""
        sql = (
            "SELECT sink, CASE state WHEN 'refused' THEN records - stored ELSE failed END,"
            " CASE state WHEN 'refused' THEN 'refused: ' ELSE '' END || coalesce(detail, '')"
            " FROM deliveries JOIN segments ON number = segment"
            " WHERE state = 'refused' OR failed > 0 ORDER BY changed_at, segment"
        )
        return [(sink, records, cause) for sink, records, cause in self._rows(sql)]

    def unfinished(self) -> bool:
        """Whether there are records that may still be sent: pending, or refused so far."""
        sql = "SELECT 1 FROM deliveries WHERE state IN ('pending', 'refused') LIMIT 1"
        return bool(self._rows(sql))

    def retry_refused(self) -> None:
        """New credentials may do: what was refused is to be sent once more."""
        with self.transaction():
            self._connection.execute(
                "UPDATE deliveries SET state = 'pending', detail = NULL, changed_at = ?"
                " WHERE state = 'refused'",
                (time.time(),),
            )

    def last_change(self) -> float:
        """Unix time of the last thing that happened to a delivery; 0 where none has."""
        return float(self._rows("SELECT coalesce(max(changed_at), 0) FROM deliveries")[0][0])

    # -- rejections --------------------------------------------------------------

    def reject(
        self, kind: Kind | None, record_id: str | None, reason: str, line: bytes | None
    ) -> None:
        """Keep a record that was set aside: why, and its line if it has one."""
        with self.transaction():
            self._connection.execute(
                "INSERT INTO rejections VALUES (?, ?, ?, ?, ?)",
                (time.time(), kind or "unknown", record_id, reason, line),
            )

    def rejections(self) -> list[tuple[str, str | None, str]]:
        """Every record that was set aside: kind, id where it had one, reason."""
        rows = self._rows("SELECT kind, id, reason FROM rejections ORDER BY at")
        return [(kind, record_id, reason) for kind, record_id, reason in rows]
