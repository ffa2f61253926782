"""The lease on a writer folder: who holds it is alive, and nobody else may write there.

An ``fcntl.lockf`` lock, which the kernel takes back when the process dies, however it dies,
and which a fork does not inherit. It belongs to the process as a whole, and closing any
descriptor of the file gives it away: so each process opens a lease file once, and a set
keeps its own threads apart.
"""

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import Self

#: Process, device and inode of each lease file: a folder may be renamed under its lease.
_held: set[tuple[int, int, int]] = set()
_lock = threading.Lock()


class Lease:
    """A lease that is held. Made by ``take``."""

    def __init__(self, descriptor: int, key: tuple[int, int, int]) -> None:
        self._descriptor = descriptor
        self._key = key

    @classmethod
    def take(cls, folder: Path) -> Self | None:
        """The lease on a folder; None while anybody holds it, another thread included, and
        where there is no such folder any more.
        """
        path = folder / "lease"
        with _lock:
            if path.exists() and _key(path.stat()) in _held:
                return None
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                return None
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                key = _key(os.fstat(descriptor))
                moved = not path.exists() or _key(path.stat()) != key
            except OSError as error:
                os.close(descriptor)
                if error.errno in {errno.EACCES, errno.EAGAIN}:
                    return None
                raise
            if moved:  # its last holder removed the folder
                os.close(descriptor)
                return None
            _held.add(key)
        return cls(descriptor, key)

    def release(self) -> None:
        """Give the lease back; in a forked child, which never had it, nothing happens."""
        if self._key[0] != os.getpid():
            return
        with _lock:
            if self._key in _held:
                _held.discard(self._key)
                os.close(self._descriptor)


def _key(status: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), status.st_dev, status.st_ino


def _fresh_lock() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it at the fork
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_fresh_lock)
