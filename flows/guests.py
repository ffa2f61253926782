"""Logging into an evaluation from another process: a fork, a process pool, another machine.

A guest never opens and never closes. On the machine of the evaluation's spool it appends, and
the owner uploads. Elsewhere it has a spool of its own and uploads itself, as it goes and at
its exit; ``run.flush()`` says whether all has arrived.

A process has one guest per evaluation, however often the run comes to it: a pool's worker gets
the run with every call.
"""

import atexit
import os
import threading
import weakref
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.logging.loggers import get_logger

from prefect_prime.errors import ConfigurationError, RecordRejectedError, RunFinishedError
from prefect_prime.flows.credentials import load_credentials
from prefect_prime.flows.session import Session, Ticket
from prefect_prime.metrics import SummaryAccumulator, merge, overlay
from prefect_prime.settings import Settings, load_settings
from prefect_prime.spool import SINKS, Sink, Tally, store
from prefect_prime.spool.guest import GuestWriter

#: Seconds that a guest with a spool of its own may still send at its exit.
_DRAIN_AT_EXIT = 60.0


class LocalGuest:
    """In place of a ``Session``, in another process of the same machine.

    Its counts and metrics are those of what this process logged. When nobody has it any more,
    everything is handed over, and the owner need not wait for this process.
    """

    errors: list[str] = []  # noqa: RUF012 - the owner has them

    def __init__(self, ticket: Ticket, settings: Settings) -> None:
        self.plan = ticket.plan
        self.evaluation = ticket.evaluation
        self.attempt = ticket.flow_run.run_count or 1
        self.flow_run = ticket.flow_run
        self.log = get_logger("prefect_prime")
        self.episodes = 0
        self.rejected = 0
        self.dropped = 0
        self._metrics = SummaryAccumulator()
        self._given: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._owner = store.owner_of(ticket.run_folder)
        self._writer = GuestWriter(
            ticket.run_folder,
            segment_bytes=settings.segment_bytes,
            segment_age=settings.segment_age,
        )
        weakref.finalize(self, self._writer.close)

    def add(self, record: object) -> None:
        """Append one record for the owner to take in. Raises as ``Session.add`` does."""
        with self._lock:
            self._require_owner()
            try:
                kind, mapping = self._writer.add(record)
            except RecordRejectedError:
                self.rejected += 1
                raise
            self.episodes += kind == "episode"
            try:
                self._metrics.add(kind, mapping)
            except Exception as error:  # noqa: BLE001 - as in the spool
                self.log.warning("A record does not count in the metrics: %s", error)

    def update_summary(self, values: Mapping[str, Any]) -> None:
        """Have the owner lay run-level metrics over the computed ones."""
        with self._lock:
            self._require_owner()
            self._given = overlay(self._given, values)
            self._writer.update_summary(self._given)

    def _require_owner(self) -> None:
        if not self._owner.exists():
            raise RunFinishedError(
                f"the run {self.plan.spec.name!r} has ended in the process that it belongs to:"
                " wait there for the processes that log into it"
            )

    def metrics(self) -> dict[str, Any]:
        """Over what this process logged."""
        with self._lock:
            return merge(self._metrics.summary(), self._given)

    def rollouts(self) -> Counter[Any]:
        """Known to the owner alone."""
        return Counter()

    def tallies(self) -> dict[Sink, Tally]:
        """Known to the owner alone."""
        return dict.fromkeys(SINKS, Tally())

    def flush(self, timeout: float | None) -> bool:  # noqa: ARG002 - the Session's signature
        """Hand everything over to the owner."""
        with self._lock:
            self._writer.seal()
        return True


# Keys begin with the process, because a fork inherits these.
_here: "weakref.WeakValueDictionary[tuple[int, Path], LocalGuest]" = weakref.WeakValueDictionary()
_away: dict[tuple[int, Path], Session] = {}
_lock = threading.Lock()


def join(ticket: Ticket) -> LocalGuest | Session:
    """Become a guest of the evaluation, from this process.

    Raises ``ConfigurationError`` on another machine where the evaluation is not open, or no
    credentials are to be had.
    """
    settings = load_settings()
    key = (os.getpid(), ticket.run_folder)
    same_store = store.store_id(settings.spool_dir) == ticket.store_id
    with _lock:
        if same_store and ticket.run_folder.exists():
            guest = _here.get(key)
            if guest is None:
                guest = _here[key] = LocalGuest(ticket, settings)
            return guest
        if key not in _away:
            _away[key] = _join_from_away(ticket, settings)
        return _away[key]


def _join_from_away(ticket: Ticket, settings: Settings) -> Session:
    if ticket.evaluation is None:
        raise ConfigurationError(
            "this run is offline, so it can be logged into only on the machine it began on"
        )
    credentials = load_credentials(ticket.plan.credentials, settings)
    if credentials is None:
        raise ConfigurationError(
            "there are no credentials here to log with: set PRIME_API_KEY on this machine, or"
            " name a block in credentials="
        )
    folder = store.away_folder(settings.spool_dir, ticket.flow_run.id)
    session = Session(folder, settings, credentials, get_logger("prefect_prime"))
    session.begin(ticket.flow_run, ticket.plan.attached_to(ticket.evaluation.id), session.log)
    atexit.register(_leave, session)
    return session


def _leave(session: Session) -> None:
    if session.pid == os.getpid():
        sent = session.drain(_DRAIN_AT_EXIT)
        session.give_back(remove=sent and not any(session.errors))


def _fresh_lock() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it at the fork
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_fresh_lock)
