"""The platform's memory: one SQLite file, safe for many threads, kept over restarts.

Readers each have a connection of their own and never wait (WAL); writers take one lock
and one transaction, so a request is stored as a whole or not at all. The API key is
nobody's data and is never stored.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: The file's name in the platform's directory.
FILE_NAME = "platform.sqlite"
#: Raised with every change of the tables; a file of another version is refused.
SCHEMA_VERSION = 1

#: Pages of 4 KiB in the write-ahead log before it is folded into the file, which syncs the
#: disk: several uploads share one.
CHECKPOINT_PAGES = 8_000

#: Times are microseconds since 1970, UTC. ``seq`` is the order of arrival.
_SCHEMA = """
CREATE TABLE environments (
    id TEXT PRIMARY KEY,
    team_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (team_id, owner, name)
);
CREATE TABLE evaluations (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    error_message TEXT,
    suite_id TEXT,
    team_id TEXT,
    fields BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    finalized_at INTEGER
);
CREATE TABLE evaluation_environments (
    evaluation_id TEXT NOT NULL,
    environment_id TEXT NOT NULL,
    PRIMARY KEY (evaluation_id, environment_id)
);
CREATE TABLE samples (
    seq INTEGER PRIMARY KEY,
    evaluation_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (evaluation_id, position)
);
CREATE TABLE uploads (
    id TEXT PRIMARY KEY,
    line_format TEXT NOT NULL,
    context TEXT NOT NULL,
    ingested_at INTEGER NOT NULL,
    is_replayable INTEGER NOT NULL
);
CREATE TABLE traces (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    trace_id TEXT NOT NULL UNIQUE,
    generation INTEGER NOT NULL DEFAULT 1,
    upload_id TEXT NOT NULL,
    ingested_at INTEGER NOT NULL,
    episode_id TEXT,
    created_at INTEGER NOT NULL,
    run_id TEXT,
    run_step INTEGER,
    environment_id TEXT,
    model_provider TEXT,
    model_id TEXT,
    task_id TEXT,
    agent_name TEXT,
    reward REAL,
    outcome TEXT,
    has_error INTEGER NOT NULL,
    is_truncated INTEGER NOT NULL,
    duration_ms INTEGER NOT NULL,
    total_tokens INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL
);
CREATE INDEX traces_by_time ON traces (created_at);
CREATE INDEX traces_by_run ON traces (run_id, created_at);
CREATE INDEX traces_by_episode ON traces (episode_id, created_at);
CREATE INDEX traces_by_upload ON traces (upload_id);
CREATE TABLE trace_documents (trace_id TEXT PRIMARY KEY, document BLOB NOT NULL);
CREATE TABLE episodes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    episode_id TEXT NOT NULL UNIQUE,
    upload_id TEXT NOT NULL,
    ingested_at INTEGER NOT NULL,
    schema_version INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    run_id TEXT,
    environment_id TEXT,
    outcome TEXT,
    has_error INTEGER NOT NULL,
    error_type TEXT,
    error_message TEXT,
    envelope BLOB NOT NULL
);
CREATE INDEX episodes_by_time ON episodes (created_at);
CREATE INDEX episodes_by_run ON episodes (run_id, created_at);
CREATE INDEX episodes_by_upload ON episodes (upload_id);
"""

#: Derived from the tables above, so not part of their version: made where it is missing.
#: ``example`` has no type: integers sort before texts.
_DERIVED = """
CREATE TABLE IF NOT EXISTS sample_facts (
    evaluation_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    episode_id TEXT,
    example,
    rollout INTEGER,
    reward REAL,
    error_type TEXT,
    error_message TEXT,
    stop_condition TEXT,
    truncated INTEGER NOT NULL,
    tokens INTEGER,
    duration_ms INTEGER,
    input TEXT NOT NULL,
    target TEXT NOT NULL,
    reply TEXT NOT NULL,
    PRIMARY KEY (evaluation_id, position)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sample_facts_by_example
    ON sample_facts (evaluation_id, example, rollout, reward, error_type);
CREATE INDEX IF NOT EXISTS sample_facts_by_episode ON sample_facts (evaluation_id, episode_id);
CREATE INDEX IF NOT EXISTS sample_facts_by_error ON sample_facts (evaluation_id, error_type)
    WHERE error_type IS NOT NULL;
CREATE INDEX IF NOT EXISTS episodes_without_traces
    ON episodes (json_extract(CAST(envelope AS TEXT), '$.run.id')) WHERE run_id IS NULL;
"""


def now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


class Store:
    """The database of one platform; ``sqlite3.DatabaseError`` when the file is not one."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._write_lock = threading.Lock()
        self._idle_lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._writer = self._connect()
        try:
            self._migrate()
        except BaseException:
            self._writer.close()
            raise

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one state of the database for as long as it is held."""
        with self._idle_lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._connect()
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            connection.rollback()
            with self._idle_lock:
                self._idle.append(connection)

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """The writing connection in one transaction: all of it is kept, or nothing."""
        with self._write_lock:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
            except BaseException:
                self._writer.rollback()
                raise
            self._writer.commit()

    def close(self) -> None:
        """Close every connection; the write-ahead log goes into the one file."""
        with self._write_lock, self._idle_lock:
            while self._idle:
                self._idle.pop().close()
            self._writer.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, timeout=30
        )
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # A power cut may lose the last commits, a crash of the process none: enough here.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self) -> None:
        with self.write() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            elif version != SCHEMA_VERSION:
                raise sqlite3.DatabaseError(
                    f"{self._path} has tables of version {version}, this package those of "
                    f"{SCHEMA_VERSION}. Use another directory."
                )
            for statement in _DERIVED.split(";"):
                connection.execute(statement)
