"""One SQLite file that is shared by threads, survives the death of its process, and forks.

One connection, guarded by one lock: every statement is short, and SQLite allows one
writer anyway. WAL, so that another process may read while the owner writes.
"""

import ctypes
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

_open: "WeakSet[Database]" = WeakSet()


def _keep_in_child() -> None:
    """After a fork, keep the child from ever closing its copies of the parent's connections.

    Closing one may delete the log that the parent still writes, and SQLite knows no way to let
    one go unclosed.
    """
    for database in _open:
        database.leak()


os.register_at_fork(after_in_child=_keep_in_child)


class Database:
    """An open file with a schema. Raises ``sqlite3.Error`` where the disk does; to open it,
    ``OSError`` too.
    """

    def __init__(self, path: Path, schema: str, *, fsync: bool = False) -> None:
        self._lock = threading.RLock()
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # its logs follow it
        self._connection = sqlite3.connect(
            path, check_same_thread=False, isolation_level=None, timeout=30.0
        )
        try:
            self._connection.execute("PRAGMA journal_mode=WAL")
            # Segments are written without fsync too: both survive the death of the process.
            self._connection.execute(f"PRAGMA synchronous={'FULL' if fsync else 'NORMAL'}")
            self._connection.executescript(schema)
        except BaseException:
            self._connection.close()
            raise
        _open.add(self)

    def close(self) -> None:
        """Close the file. It cannot be used afterwards."""
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

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What a query gives."""
        with self._lock:
            return self._connection.execute(sql, parameters).fetchall()

    def write(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Execute one statement, in the transaction that is open or in one of its own."""
        with self.transaction():
            self._connection.execute(sql, parameters)

    def write_all(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Execute one statement for each of many parameters, in one transaction."""
        with self.transaction():
            self._connection.executemany(sql, parameters)
