"""One segment file: JSON lines of one kind, appended until it is large or old enough.

Every line is one unbuffered ``write``: once ``append`` returns, the record survives the
death of this process. A write that the disk cuts short is taken back, so that a segment
holds whole lines only.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from prefect_prime.errors import SpoolError
from prefect_prime.records import Kind
from prefect_prime.spool.ledger import RecordEntry


def recover_lines(path: Path) -> tuple[list[bytes], int]:
    """The whole lines of a segment whose writer died, and how many bytes were torn.

    A line is whole when its line end is there; what follows the last one was torn by the
    death, and is no record.
    """
    *lines, torn = path.read_bytes().split(b"\n")
    return lines, len(torn)


def whole_lines(path: Path, size: int) -> Iterator[bytes]:
    """A closed segment in pieces of whole lines, each of about ``size`` bytes or one line."""
    with path.open("rb") as file:
        while lines := file.read(size):
            yield lines + file.readline()


def segment_path(folder: Path, number: int, kind: Kind) -> Path:
    """Where a segment lies. The kind is in the name, so that a lost ledger loses nothing."""
    return folder / f"{number:06d}.{kind}.jsonl"


class OpenSegment:
    """A segment that still takes records."""

    def __init__(self, folder: Path, number: int, kind: Kind, *, fsync: bool = False) -> None:
        self._fsync = fsync
        self.number = number
        self.kind: Kind = kind
        self.entries: list[RecordEntry] = []
        self.by_id: dict[str, RecordEntry] = {}
        #: The episode of each trace that is in one.
        self.members: dict[str, str] = {}
        #: The latest rollout number of each example seen here.
        self.rollouts: dict[str, int] = {}
        self.with_traces = 0
        self.size = 0
        self.opened_at = time.monotonic()
        self._path = segment_path(folder, number, kind)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self._path, flags, 0o600)
            if fsync:
                _sync_folder(folder)
        except OSError as error:
            raise SpoolError(f"cannot open the segment {self._path}: {error.strerror}") from error

    def append(self, line: bytes, entry: RecordEntry, *, with_traces: bool) -> None:
        """Write one whole line, or raise ``SpoolError`` and leave the file as it was."""
        try:
            written = os.write(self._descriptor, line)
            reason = "the disk is full" if written < len(line) else None
            if self._fsync and reason is None:
                os.fsync(self._descriptor)
        except OSError as error:
            reason = error.strerror or str(error)
        if reason is not None:
            with contextlib.suppress(OSError):  # what stays behind is no whole line
                os.ftruncate(self._descriptor, self.size)
            raise SpoolError(f"cannot write to the segment {self._path}: {reason}")
        self.size += len(line)
        self.with_traces += with_traces
        self.entries.append(entry)
        self.by_id[entry.id] = entry
        self.members.update(dict.fromkeys(entry.traces, entry.id))
        if entry.example is not None and entry.rollout is not None:
            self.rollouts[entry.example] = entry.rollout

    def age(self) -> float:
        """Seconds since it was opened."""
        return time.monotonic() - self.opened_at

    def close(self) -> None:
        """Give the file back. The bytes are with the operating system already."""
        os.close(self._descriptor)


def _sync_folder(folder: Path) -> None:
    """Force the folder's entries to the disk: a file without a name is lost too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
