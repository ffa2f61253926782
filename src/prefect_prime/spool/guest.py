"""What another process of the same machine logs into somebody's evaluation.

A guest only appends: whole records, one JSON line each, into segments of its own folder beside
the owner's. The owner takes them in as if they had been logged there, so that ids, rollout
numbers, metrics and uploads have one truth. A guest's lease says that more may come.
"""

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from prefect_prime import encoding, records
from prefect_prime.errors import RecordRejectedError, SpoolError
from prefect_prime.spool.lease import Lease

_PREFIX = "guest-"
#: What a line holds, by its one key: a record; run-level metrics; kind, id and reason of a
#: record that was set aside.
RECORD: Final = "record"
SUMMARY: Final = "summary"
REJECTED: Final = "rejected"


class GuestWriter:
    """One guest process's way into an evaluation of this machine.

    ``run_folder`` is the flow run's folder in the store. Raises ``SpoolError`` where the disk
    does, and ``RecordRejectedError`` for a record that cannot be stored.
    """

    def __init__(self, run_folder: Path, *, segment_bytes: int, segment_age: float) -> None:
        self._segment_bytes = segment_bytes
        self._segment_age = segment_age
        self._number = 0
        self._size = 0
        self._opened_at = 0.0
        self._descriptor: int | None = None
        self._pid = os.getpid()
        name = f"{self._pid}-{uuid.uuid4().hex[:8]}"
        hidden = run_folder / f".{name}"
        try:
            hidden.mkdir(mode=0o700)
            # Before anybody can see the folder: without its lease a guest counts as gone.
            self._lease = Lease.take(hidden)
            self.folder = hidden.rename(run_folder / f"{_PREFIX}{name}")
        except OSError as error:
            raise SpoolError(f"cannot log from this process: {error}") from error

    def add(self, record: object) -> tuple[records.Kind, Mapping[str, Any]]:
        """Append one record; its kind and its mapping."""
        kind: records.Kind | None = None
        record_id: str | None = None
        try:
            mapping = records.to_mapping(record)
            kind = records.kind_of(mapping)
            record_id = records.record_id(mapping, kind)
            line = encoding.encode(mapping)
        except RecordRejectedError as error:
            why = {"kind": kind, "record_id": record_id, "reason": str(error)}
            self._append(REJECTED, encoding.encode(why))
            raise
        self._append(RECORD, line)
        return kind, mapping

    def update_summary(self, values: Mapping[str, Any]) -> None:
        """Have the owner lay run-level metrics over the computed ones."""
        self._append(SUMMARY, encoding.encode(values))

    def _append(self, what: str, value: bytes) -> None:
        line = b'{"%s":%s}\n' % (what.encode(), value.rstrip())
        try:
            if self._descriptor is None:
                self._number += 1
                self._size = 0
                self._opened_at = time.monotonic()
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(self._open_path, flags, 0o600)
            written = os.write(self._descriptor, line)
            if written < len(line):
                os.ftruncate(self._descriptor, self._size)
        except OSError as error:
            raise SpoolError(f"cannot write to {self.folder}: {error}") from error
        if written < len(line):
            raise SpoolError(f"cannot write to {self.folder}: the disk is full")
        self._size += len(line)
        age = time.monotonic() - self._opened_at
        if self._size >= self._segment_bytes or age >= self._segment_age:
            self.seal()

    @property
    def _open_path(self) -> Path:
        return self.folder / f"{self._number:06d}.open"

    def seal(self) -> None:
        """Hand over to the owner what was appended so far."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._open_path.rename(self._open_path.with_suffix(".jsonl"))

    def close(self) -> None:
        """Hand everything over; nothing more comes. Nothing happens in a fork of the guest."""
        if self._pid == os.getpid():
            self.seal()
            if self._lease is not None:
                self._lease.release()


class Guest:
    """A guest's folder, as the owner sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def all(cls, run_folder: Path) -> list["Guest"]:
        """The guests of a flow run whose records have not all been taken in."""
        return [cls(folder) for folder in sorted(run_folder.glob(f"{_PREFIX}*"))]

    def handed_over(self) -> Iterator[Path]:
        """The segments that are ready; all there are, once the guest is gone."""
        lease = Lease.take(self.folder)
        if lease is not None:  # it will write no more, and what it left open is ready too
            for path in self.folder.glob("*.open"):
                path.rename(path.with_suffix(".jsonl"))
            lease.release()
        yield from sorted(self.folder.glob("*.jsonl"))

    def is_gone(self) -> bool:
        """Whether nothing more can come from it."""
        lease = Lease.take(self.folder)
        if lease is None:
            return False
        lease.release()
        return not any(self.folder.glob("*.*"))


def read(line: bytes) -> tuple[str, Any]:
    """A guest's line: what it holds, and that. Raises ``ValueError`` for a damaged one."""
    ((what, value),) = encoding.decode(line).items()
    return what, value
