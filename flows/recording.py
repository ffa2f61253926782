"""What is logged into one evaluation: records, run-level metrics, and what became of them.

All of it is in the spool, and so outlives an attempt and a process; what was last known stays
readable when the spool is closed, and gone maybe.
"""

import functools
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from logging import Logger, LoggerAdapter
from typing import Any, TypeVar

from prefect_prime.errors import SpoolError
from prefect_prime.flows.contributions import Contribution
from prefect_prime.flows.evaluation_facts import EvaluationFacts
from prefect_prime.metrics import SummaryAccumulator, merge, overlay
from prefect_prime.records import KINDS
from prefect_prime.spool import SINKS, Sink, Spool, Tally
from prefect_prime.tasks import OpenedEvaluation

Log = Logger | LoggerAdapter[Any]
T = TypeVar("T")

_outliving: list[Callable[["Recording"], Any]] = []


def _outlives(read: Callable[["Recording"], T]) -> Callable[["Recording"], T]:
    """Keep what a method last gave for when the spool is closed, and gone maybe."""
    _outliving.append(read)

    @functools.wraps(read)
    def remembering(recording: "Recording") -> T:
        if recording.last is None:
            return read(recording)
        value: T = recording.last[read.__name__]
        return value

    return remembering


class Recording:
    """The record side of an evaluation that this process owns."""

    def __init__(self, spool: Spool, log: Log) -> None:
        self.log = log
        self.spool = spool
        self.facts = EvaluationFacts(spool.ledger)
        #: Records that the spool itself could not take, in this process.
        self.dropped = 0
        #: What guests with spools of their own logged; None before that was asked.
        self.elsewhere: Sequence[Contribution] | None = None
        #: What was known at the end, by name; None before.
        self.last: dict[str, Any] | None = None

    @property
    @_outlives
    def evaluation(self) -> OpenedEvaluation | None:
        """The evaluation that records go into now; None too while it may have been closed."""
        return None if self.facts.unsure else self.facts.evaluation

    def add(self, record: object) -> None:
        """Take one record in. Raises as ``Spool.add`` does."""
        self.spool.add(record)

    @property
    @_outlives
    def episodes(self) -> int:
        """Episodes taken in, each once, and those of guests elsewhere."""
        return self.spool.count("episode") + sum(each.episodes for each in self._guests_elsewhere)

    @property
    def _guests_elsewhere(self) -> Sequence[Contribution]:
        return self.elsewhere or ()

    @property
    @_outlives
    def records(self) -> int:
        """Records of every kind taken in, each once."""
        return sum(self.spool.count(kind) for kind in KINDS)

    @property
    def rejected(self) -> int:
        """Records that were set aside."""
        return self.spool.rejected

    @_outlives
    def rollouts(self) -> Counter[Any]:
        """How many rollouts of each example were taken in, by the example's id."""
        return Counter(self.spool.rollouts())

    def update_summary(self, values: Mapping[str, Any]) -> None:
        """Lay run-level metrics of the user's over the computed ones. Raises ``SpoolError``."""
        ledger = self.spool.ledger
        try:
            with ledger.transaction():
                ledger.set_fact("user_summary", overlay(ledger.fact("user_summary", {}), values))
        except sqlite3.Error as error:
            raise SpoolError(f"cannot write to {self.place}: {error}") from error

    @_outlives
    def metrics(self) -> dict[str, Any]:
        """The metrics as the dashboard reads them: computed, then what the user gave, here after
        elsewhere.
        """
        given: dict[str, Any] = {}
        for each in self._guests_elsewhere:
            given = merge(given, each.given)
        return merge(self.counted().summary(), merge(given, self.given()))

    def counted(self) -> SummaryAccumulator:
        """What the metrics are made of, here and elsewhere."""
        return self.spool.counted(each.metrics for each in self._guests_elsewhere)

    def given(self) -> dict[str, Any]:
        """What the user gave here."""
        given: dict[str, Any] = self.spool.ledger.fact("user_summary", {})
        return given

    @property
    @_outlives
    def errors(self) -> list[str]:
        """What could not be uploaded for good, a line each."""
        return [
            f"{records} record(s) were not stored by the {sink} sink: {cause}"
            for sink, records, cause in self.spool.ledger.deliveries.failures()
        ]

    @property
    def place(self) -> str:
        """Where records are that are not on the platform."""
        return f"the spool {self.spool.folder}"

    @_outlives
    def tallies(self) -> dict[Sink, Tally]:
        """By sink: what became of the records that were taken in, here and elsewhere."""
        tallies = self.own_tallies()
        for each in self._guests_elsewhere:
            tallies = {sink: tally + each.tallies[sink] for sink, tally in tallies.items()}
        return tallies

    def own_tallies(self) -> dict[Sink, Tally]:
        """By sink: what became of the records in this spool."""
        return {sink: self.spool.tally(sink) for sink in SINKS}

    def losses(self) -> dict[str, dict[str, int]]:
        """By sink: records that were not stored, and those that still wait."""
        return losses(self.tallies())

    def note_returned(self) -> None:
        """The entrypoint has returned: a later attempt does not call it again."""
        try:
            self.facts.set_returned()
        except sqlite3.Error as error:
            self.log.warning("A retry would run this eval again: %s: %s", self.place, error)

    def has_losses(self) -> bool:
        """Whether a record of this spool was not stored, or still waits."""
        own = losses(self.own_tallies())
        return any(count for lost in own.values() for count in lost.values())

    def close(self, *, remove: bool = False) -> None:
        """Close the spool, and remove it where it is over; what is known stays readable."""
        self.last = {read.__name__: read(self) for read in _outliving}
        self.spool.close(remove=remove)


def losses(tallies: Mapping[Sink, Tally]) -> dict[str, dict[str, int]]:
    """By sink: what a person has to know of, because it is not there."""
    return {
        sink: {"failed": tally.failed, "pending": tally.pending} for sink, tally in tallies.items()
    }
