"""The owner's side of guests: what they handed over becomes records of the spool."""

import shutil
import threading
from collections.abc import Callable, Mapping
from logging import Logger, LoggerAdapter
from typing import Any

from prefect_prime.errors import RecordRejectedError, SpoolError
from prefect_prime.spool.guest import RECORD, SUMMARY, Guest, read
from prefect_prime.spool.segment import recover_lines
from prefect_prime.spool.spool import Spool


class GuestIntake:
    """Takes in what guests of one flow run have handed over, in the order of each.

    A death on the way costs nothing: what was taken in before is known to the spool. Where the
    disk fails, the guests' files stay for another time.
    """

    def __init__(
        self,
        spool: Spool,
        update_summary: Callable[[Mapping[str, Any]], None],
        log: "Logger | LoggerAdapter[Any]",
    ) -> None:
        self._spool = spool
        self._update_summary = update_summary
        self._log = log
        self._one_at_a_time = threading.Lock()
        self._closed = False
        self._complained = False

    def collect(self) -> bool:
        """Take in what is ready; whether more may come."""
        with self._one_at_a_time:
            if self._closed:
                return False
            living = [self._take_in(guest) for guest in Guest.all(self._spool.folder.parent)]
            return any(living)

    def close(self) -> None:
        """Take nothing more in: the spool is about to close."""
        with self._one_at_a_time:
            self._closed = True

    def _take_in(self, guest: Guest) -> bool:
        try:
            for path in guest.handed_over():
                lines, torn = recover_lines(path)
                for line in lines:
                    self._take_in_line(line)
                path.unlink()
                if torn:
                    self._spool.count_torn()
                    self._log.warning("%s: its last record was torn by a death", path)
            gone = guest.is_gone()
        except (SpoolError, OSError) as error:
            if not self._complained:
                self._complained = True
                self._log.error("What another process logged is still to be taken in: %s", error)
            return True
        if gone:
            shutil.rmtree(guest.folder, ignore_errors=True)
        return not gone

    def _take_in_line(self, line: bytes) -> None:
        try:
            what, value = read(line)
            if what == RECORD:
                self._spool.add(value)
            elif what == SUMMARY:
                self._update_summary(value)
            else:
                self._spool.set_aside(**value)
        except RecordRejectedError as error:
            self._log.error("A record of another process was set aside: %s", error)
        except ValueError as error:  # the disk itself is damaged
            self._spool.set_aside(None, None, f"unreadable: {error}", line)
