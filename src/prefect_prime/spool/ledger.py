"""The ledger: what is known of one spool, in one SQLite file that outlives the process.

It holds which segments are closed, what each sink made of them, every record's id and
digest, and the few facts that a later process needs to go on: the spool's token, the
evaluation, the sums of the metrics. It never holds a credential.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from prefect_prime.records import Kind
from prefect_prime.spool import deliveries
from prefect_prime.spool.database import Database
from prefect_prime.spool.deliveries import Deliveries, DeliveryState, Sink
from prefect_prime.spool.seen import Seen

#: Far below the 32,766 parameters that one statement of SQLite may have.
_ASKED_AT_ONCE = 500

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (
    key TEXT PRIMARY KEY, value BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS segments (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, records INTEGER NOT NULL,
    with_traces INTEGER NOT NULL, bytes INTEGER NOT NULL, closed_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS records (
    kind TEXT NOT NULL, id TEXT NOT NULL, digest BLOB NOT NULL,
    segment INTEGER NOT NULL, position INTEGER NOT NULL, example TEXT, rollout INTEGER,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS records_by_position ON records (segment, position);
CREATE INDEX IF NOT EXISTS records_by_example ON records (example);
CREATE TABLE IF NOT EXISTS members (
    trace TEXT PRIMARY KEY, episode TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS origins (
    number INTEGER PRIMARY KEY, value TEXT NOT NULL UNIQUE
);
CREATE TABLE IF NOT EXISTS rejections (
    at REAL NOT NULL, kind TEXT NOT NULL, id TEXT, reason TEXT NOT NULL, line BLOB
);
"""


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """One record of a segment: its identity, its place among its example's rollouts, and
    the ids of an episode's traces.
    """

    id: str
    digest: bytes
    example: str | None
    rollout: int | None
    traces: tuple[str, ...] = ()


class Ledger(Database):
    """The open ledger of one spool folder. Raises ``sqlite3.Error`` where the disk does; to open
    it, ``OSError`` too.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        super().__init__(path, _SCHEMA + deliveries.SCHEMA, fsync=fsync)
        self._seen: Seen | None = None
        #: What each sink made of the segments.
        self.deliveries = Deliveries(self)

    # -- facts ---------------------------------------------------------------

    def fact(self, key: str, default: Any = None) -> Any:
        """A JSON value by name, or ``default``."""
        rows = self.rows("SELECT value FROM facts WHERE key = ?", (key,))
        return orjson.loads(rows[0][0]) if rows else default

    def set_fact(self, key: str, value: Any) -> None:
        """Keep a JSON value under a name, over what was there."""
        self.write(
            "INSERT INTO facts VALUES (?, ?)"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, orjson.dumps(value)),
        )

    # -- segments and records ------------------------------------------------

    def segments(self) -> set[int]:
        """The numbers of the closed segments."""
        return {number for (number,) in self.rows("SELECT number FROM segments")}

    def close_segment(
        self,
        number: int,
        kind: Kind,
        entries: Sequence[RecordEntry],
        *,
        size: int,
        with_traces: int,
        states: Iterable[tuple[Sink, DeliveryState]],
    ) -> None:
        """Enter a closed segment: its records, and where each sink stands with it."""
        seen = self._known()
        for entry in entries:
            seen.add(entry.id)
            for trace in entry.traces:
                seen.add(trace)
        with self.transaction():
            self.write(
                "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?)",
                (number, kind, len(entries), with_traces, size, time.time()),
            )
            self.write_all(
                "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (kind, entry.id, entry.digest, number, position, entry.example, entry.rollout)
                    for position, entry in enumerate(entries)
                ],
            )
            # Whatever is there already, what is on the disk must come to be known as closed.
            self.write_all(
                "INSERT OR IGNORE INTO members VALUES (?, ?)",
                [(trace, entry.id) for entry in entries for trace in entry.traces],
            )
            self.deliveries.enter(number, len(entries), states)

    def digest(self, kind: Kind, record_id: str) -> bytes | None:
        """The digest under which a record of a closed segment was stored, if it was."""
        if record_id not in self._known():
            return None
        rows = self.rows("SELECT digest FROM records WHERE kind = ? AND id = ?", (kind, record_id))
        return rows[0][0] if rows else None

    def holder(self, traces: Sequence[str]) -> tuple[str, str | None] | None:
        """One of these trace ids that a closed segment holds, and the episode it is in; None
        for a trace that was logged by itself.
        """
        seen = self._known()
        traces = [trace for trace in traces if trace in seen]
        for start in range(0, len(traces), _ASKED_AT_ONCE):
            asked = traces[start : start + _ASKED_AT_ONCE]
            places = ",".join("?" * len(asked))
            rows = self.rows(
                f"SELECT trace, episode FROM members WHERE trace IN ({places})"  # noqa: S608 - question marks alone
                f" UNION ALL SELECT id, NULL FROM records WHERE kind = 'trace' AND id IN ({places})"
                " LIMIT 1",
                (*asked, *asked),
            )
            if rows:
                return rows[0][0], rows[0][1]
        return None

    def _known(self) -> Seen:
        """The ids of closed segments: each id of a record or a member trace that is stored."""
        if self._seen is None:
            self._seen = Seen()
            for (known,) in self.rows("SELECT id FROM records UNION ALL SELECT trace FROM members"):
                self._seen.add(known)
        return self._seen

    def rollouts(self, example: str) -> int:
        """How many rollouts of an example the closed segments hold."""
        rows = self.rows("SELECT max(rollout) FROM records WHERE example = ?", (example,))
        return rows[0][0] or 0

    def examples(self) -> dict[str, int]:
        """By example, as JSON: how many rollouts of it the closed segments hold."""
        sql = "SELECT example, max(rollout) FROM records WHERE example IS NOT NULL GROUP BY example"
        return dict(self.rows(sql))

    def rollout_numbers(self, segment: int) -> list[int | None]:
        """The rollout number of each record of a segment, in the order of its lines."""
        sql = "SELECT rollout FROM records WHERE segment = ? ORDER BY position"
        return [rollout for (rollout,) in self.rows(sql, (segment,))]

    def record_ids(self, segment: int) -> list[str]:
        """The id of each record of a segment, in the order of its lines."""
        sql = "SELECT id FROM records WHERE segment = ? ORDER BY position"
        return [record for (record,) in self.rows(sql, (segment,))]

    def segment_digest(self, segment: int) -> bytes:
        """The same exactly for the same records in the same order: sha256 of their digests."""
        sql = "SELECT digest FROM records WHERE segment = ? ORDER BY position"
        return sha256(b"".join(digest for (digest,) in self.rows(sql, (segment,)))).digest()

    def count(self, kind: Kind) -> int:
        """How many records of a kind the closed segments hold."""
        rows = self.rows("SELECT coalesce(sum(records), 0) FROM segments WHERE kind = ?", (kind,))
        return int(rows[0][0])

    # -- the producers' own run blocks ----------------------------------------

    def intern_origin(self, origin: str) -> int:
        """The number of a producer's run block, the same for equal ones."""
        with self.transaction():
            self.write("INSERT OR IGNORE INTO origins (value) VALUES (?)", (origin,))
            return int(self.rows("SELECT number FROM origins WHERE value = ?", (origin,))[0][0])

    def origins(self) -> int:
        """How many producers' run blocks there are; they are numbered from 1."""
        return int(self.rows("SELECT coalesce(max(number), 0) FROM origins")[0][0])

    def origin(self, number: int) -> str:
        """The producer's run block behind a number."""
        rows = self.rows("SELECT value FROM origins WHERE number = ?", (number,))
        return str(rows[0][0])

    # -- rejections --------------------------------------------------------------

    def reject(
        self, kind: Kind | None, record_id: str | None, reason: str, line: bytes | None
    ) -> None:
        """Keep a record that was set aside: why, and its line if it has one."""
        self.write(
            "INSERT INTO rejections VALUES (?, ?, ?, ?, ?)",
            (time.time(), kind or "unknown", record_id, reason, line),
        )

    def rejections(self, limit: int = -1) -> list[tuple[str, str | None, str]]:
        """The records that were set aside, all of them or the first few: kind, id where it had
        one, reason.
        """
        sql = "SELECT kind, id, reason FROM rejections ORDER BY at LIMIT ?"
        rows = self.rows(sql, (limit,))
        return [(kind, record_id, reason) for kind, record_id, reason in rows]
