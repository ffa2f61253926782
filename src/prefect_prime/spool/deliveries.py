"""The deliveries of one spool: where each closed segment stands with each sink."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import orjson

from prefect_prime.records import Kind
from prefect_prime.spool.database import Database

Sink = Literal["traces", "samples"]
SINKS: tuple[Sink, ...] = ("traces", "samples")

#: pending: still to be sent. acknowledged: the service has it. failed: it will never be
#: stored. refused: the credentials were not good enough; new ones may be. skipped: this
#: sink is off for this account, so there was nowhere for it to go.
DeliveryState = Literal["pending", "acknowledged", "failed", "refused", "skipped"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS deliveries (
    segment INTEGER NOT NULL, sink TEXT NOT NULL, state TEXT NOT NULL,
    begun INTEGER NOT NULL DEFAULT 0, requests INTEGER NOT NULL DEFAULT 0,
    rows INTEGER NOT NULL DEFAULT 0, stored INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0, skipped INTEGER NOT NULL DEFAULT 0,
    detail TEXT, blamed TEXT NOT NULL DEFAULT '{}', changed_at REAL NOT NULL,
    PRIMARY KEY (segment, sink)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS deliveries_by_state ON deliveries (state, sink, segment);
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One closed segment on its way to one sink.

    ``requests`` of it are answered already, and with them ``stored`` of its ``records``;
    one more may be ``begun``: whether the service has it is not known.
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
    blamed_json: str = "{}"

    @property
    def blamed(self) -> dict[str, str]:
        """The records of answered requests that were refused, with their reasons, by id."""
        blamed: dict[str, str] = orjson.loads(self.blamed_json)
        return blamed

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

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            stored=self.stored + other.stored,
            failed=self.failed + other.failed,
            skipped=self.skipped + other.skipped,
            pending=self.pending + other.pending,
        )


class Deliveries:
    """The deliveries that one ledger keeps, beside its segments."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def enter(
        self, segment: int, records: int, states: Iterable[tuple[Sink, DeliveryState]]
    ) -> None:
        """Enter a segment that was just closed."""
        self._db.write_all(
            "INSERT INTO deliveries (segment, sink, state, skipped, changed_at)"
            " VALUES (?, ?, ?, ?, ?)",
            [
                (segment, sink, state, records if state == "skipped" else 0, time.time())
                for sink, state in states
            ],
        )

    def pending(self, sink: Sink, limit: int) -> list[Delivery]:
        """The oldest segments that still have to go to a sink."""
        sql = (
            "SELECT number, kind, sink, records, bytes, requests, stored, begun, changed_at,"
            " blamed"
            " FROM deliveries JOIN segments ON number = segment"
            " WHERE state = 'pending' AND sink = ? ORDER BY segment LIMIT ?"
        )
        return [Delivery(*row) for row in self._db.rows(sql, (sink, limit))]

    def begin(self, segment: int, sink: Sink, request: int) -> None:
        """Note that a request, counted from 1, is about to be sent."""
        self._db.write(
            "UPDATE deliveries SET begun = ?, changed_at = ? WHERE segment = ? AND sink = ?",
            (request, time.time(), segment, sink),
        )

    def progress(
        self,
        segment: int,
        sink: Sink,
        *,
        requests: int,
        rows: int,
        stored: int,
        blamed: Mapping[str, str],
    ) -> None:
        """Note that so many requests are answered, and no further one was processed."""
        self._db.write(
            "UPDATE deliveries SET begun = ?, requests = ?, rows = ?, stored = ?, failed = ?,"
            " blamed = ?, changed_at = ? WHERE segment = ? AND sink = ?",
            (
                requests,
                requests,
                rows,
                stored,
                len(blamed),
                orjson.dumps(blamed).decode(),
                time.time(),
                segment,
                sink,
            ),
        )

    def rows(self, sink: Sink) -> int:
        """How many rows the evaluation surely got from here."""
        sql = "SELECT coalesce(sum(rows), 0) FROM deliveries WHERE sink = ?"
        return int(self._db.rows(sql, (sink,))[0][0])

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
        self._db.write(
            "UPDATE deliveries SET state = ?, stored = ?, failed = ?, skipped = ?, detail = ?,"
            " changed_at = ? WHERE segment = ? AND sink = ?",
            (state, stored, failed, skipped, detail, time.time(), segment, sink),
        )

    def give_up(self, segment: int, sink: Sink, detail: str) -> int:
        """What is not stored yet of a delivery never will be; returns how many records."""
        with self._db.transaction():
            self._db.write(
                "UPDATE deliveries SET state = 'failed', detail = ?, changed_at = ?, failed ="
                " (SELECT records FROM segments WHERE number = segment) - stored"
                " WHERE segment = ? AND sink = ?",
                (detail, time.time(), segment, sink),
            )
            sql = "SELECT failed FROM deliveries WHERE segment = ? AND sink = ?"
            return int(self._db.rows(sql, (segment, sink))[0][0])

    def refuse_pending(self, sink: Sink, detail: str) -> int:
        """A sink takes nothing with these credentials: what waits is for better ones. Returns
        how many records that is.
        """
        with self._db.transaction():
            waiting = self.tally(sink).pending
            self._db.write(
                "UPDATE deliveries SET state = 'refused', detail = ?, changed_at = ?"
                " WHERE sink = ? AND state = 'pending'",
                (detail, time.time(), sink),
            )
        return waiting

    def skip_pending(self, sink: Sink) -> None:
        """A sink turned out to be off: nothing of what waits for it was ever to go there."""
        self._db.write(
            "UPDATE deliveries SET state = 'skipped', changed_at = ?, skipped ="
            " (SELECT records FROM segments WHERE number = segment)"
            " WHERE sink = ? AND state = 'pending'",
            (time.time(), sink),
        )

    def claim_skipped(self, sink: Sink, kind: Kind) -> None:
        """A sink turned out to be needed: what passed it by is to go there after all."""
        self._db.write(
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
            " coalesce(sum(CASE state WHEN 'pending' THEN records - stored - failed ELSE 0 END), 0)"
            " FROM deliveries JOIN segments ON number = segment WHERE sink = ?"
        )
        return Tally(*self._db.rows(sql, (sink,))[0])

    def episodes_written(self) -> int:
        """Episodes with at least one trace that the traces service acknowledged."""
        sql = (
            "SELECT coalesce(sum(max(with_traces - failed, 0)), 0)"
            " FROM deliveries JOIN segments ON number = segment"
            " WHERE sink = 'traces' AND state = 'acknowledged' AND kind = 'episode'"
        )
        return int(self._db.rows(sql)[0][0])

    def reopen(self, states: Callable[[Kind, Sink], DeliveryState]) -> None:
        """Everything is to be sent once more: into another evaluation."""
        now = time.time()
        sql = "SELECT number, kind, records FROM segments"
        with self._db.transaction():
            for number, kind, count in self._db.rows(sql):
                for sink in SINKS:
                    state = states(kind, sink)
                    self._db.write(
                        "UPDATE deliveries SET state = ?, begun = 0, requests = 0, rows = 0,"
                        " stored = 0, failed = 0, skipped = ?, detail = NULL, blamed = '{}',"
                        " changed_at = ?"
                        " WHERE segment = ? AND sink = ?",
                        (state, count if state == "skipped" else 0, now, number, sink),
                    )

    def failures(self) -> list[tuple[Sink, int, str]]:
        """What sinks did not store for good, the oldest first: sink, records, cause."""
        sql = (
            "SELECT sink, CASE state WHEN 'refused' THEN records - stored ELSE failed END,"
            " CASE state WHEN 'refused' THEN 'refused: ' ELSE '' END || coalesce(detail, '')"
            " FROM deliveries JOIN segments ON number = segment"
            " WHERE state = 'refused' OR failed > 0 ORDER BY changed_at, segment"
        )
        return [(sink, records, cause) for sink, records, cause in self._db.rows(sql)]

    def overview(
        self, limit: int
    ) -> list[tuple[int, Sink, DeliveryState, int, int, int, str | None]]:
        """Deliveries as a person looks at them, those in trouble first: segment, sink, state,
        records, records that were not stored, bytes, detail.
        """
        lost = "CASE state WHEN 'refused' THEN records - stored ELSE failed END"
        sql = (
            f"SELECT segment, sink, state, records, {lost}, bytes, detail"  # noqa: S608 - our own words
            " FROM deliveries JOIN segments ON number = segment"
            " ORDER BY state IN ('acknowledged', 'skipped') AND failed = 0, segment, sink LIMIT ?"
        )
        return [(*row,) for row in self._db.rows(sql, (limit,))]

    def unfinished(self) -> bool:
        """Whether there are records that may still be sent: pending, or refused so far."""
        sql = "SELECT 1 FROM deliveries WHERE state IN ('pending', 'refused') LIMIT 1"
        return bool(self._db.rows(sql))

    def retry_refused(self) -> None:
        """New credentials may do: what was refused is to be sent once more."""
        self._db.write(
            "UPDATE deliveries SET state = 'pending', detail = NULL, changed_at = ?"
            " WHERE state = 'refused'",
            (time.time(),),
        )

    def last_change(self) -> float:
        """Unix time of the last thing that happened to a delivery; 0 where none has."""
        return float(self._db.rows("SELECT coalesce(max(changed_at), 0) FROM deliveries")[0][0])
