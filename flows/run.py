"""``EvalRun``: what an entrypoint logs into, and ``current_run``, which finds it.

Logging costs an encoding and a write to the local disk. Nothing here waits for the
platform but ``flush``, and under ``on_error="warn"`` nothing of the platform's trouble is
raised.
"""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from prefect.logging.loggers import get_logger

from prefect_prime import encoding
from prefect_prime.errors import (
    ConfigurationError,
    RecordRejectedError,
    RunFinishedError,
    ShardFailedError,
    SpoolError,
    UploadFailedError,
)
from prefect_prime.flows import guests
from prefect_prime.flows.guests import LocalGuest
from prefect_prime.flows.notebook import html
from prefect_prime.flows.options import EvalPlan
from prefect_prime.flows.outcome import Outcome
from prefect_prime.flows.recording import Log
from prefect_prime.flows.session import Session, Ticket
from prefect_prime.flows.untracked import Untracked
from prefect_prime.spool import store

T = TypeVar("T")

#: The process that a guest is in before it has joined.
_NOWHERE = 0
#: The runs that this process owns: one of them that comes back in a pickle is itself.
_owners: "WeakValueDictionary[tuple[int, Path], EvalRun]" = WeakValueDictionary()
_current: ContextVar["EvalRun | None"] = ContextVar("prefect_prime_run", default=None)


def current_run() -> "EvalRun":
    """The run of the eval that this code is part of.

    Raises ``ConfigurationError`` outside one, and in a thread that did not inherit its
    context: pass the run there as an argument.
    """
    run = _current.get()
    if run is None:
        raise ConfigurationError(
            "there is no current eval run here. Call current_run() inside a function decorated"
            " with @eval_flow; a thread of your own does not see it, so pass `run` to the thread."
        )
    return run


def surrounding_run() -> "EvalRun | None":
    """The run of the eval that this code is part of, if it is."""
    return _current.get()


@contextmanager
def entered(run: "EvalRun") -> Iterator[None]:
    """Make a run the current one for the code inside."""
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)


class EvalRun(Outcome):
    """One attempt of a tracked eval: somewhere to put episodes, and what became of them.

    Records are mappings, or objects with ``to_record()`` such as verifiers' ``Episode`` and
    ``Trace``. A mapping with ``traces`` is an episode; one with ``sample_id`` and no
    ``traces`` is a v0 sample row and goes to the samples only; anything else is a bare trace
    and goes to the traces only. Calls are safe from coroutines and threads.
    """

    def __init__(self, source: Session | Untracked | Ticket) -> None:
        self._own: Session | Untracked | LocalGuest | None = None
        self._ticket: Ticket | None = None
        self._pid = os.getpid()
        self._is_guest = isinstance(source, Ticket)
        self._before: Counter[Any] = Counter()
        if isinstance(source, Ticket):
            # It joins when it is first used, and raises then: a Dask worker that cannot unpickle
            # what it is sent loses its connection, and the eval would wait for ever.
            self._ticket, self._pid = source, _NOWHERE
        else:
            self._own = source
            if source.attempt > 1:
                self._before = source.rollouts()
            if isinstance(source, Session):
                self._ticket = source.ticket()
                _owners[os.getpid(), self._ticket.run_folder] = self
        self._ended = False
        self._asked = False
        #: What was logged when a shard was given this; None in any other guest.
        self._kept: Counter[Any] | None = None
        self._lock = threading.Lock()

    @property
    def _session(self) -> Session | Untracked | LocalGuest:
        """Where records go; a forked child becomes a guest of what its parent owns."""
        if self._ticket is not None and self._pid != os.getpid():
            self._own = guests.join(self._ticket)
            self._is_guest = True
            self._lock = threading.Lock()
            self._pid = os.getpid()  # last: until then, other threads come in here as well
        assert self._own is not None  # noqa: S101 - a guest has a ticket
        return self._own

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets a guest: it logs into the same evaluation and never closes it."""
        if self._ticket is not None:
            return _guest_run, (self._ticket,)
        return _untracked_run, (self._session.plan.without_secret(), self.attempt)

    def __repr__(self) -> str:
        return f"<EvalRun {self.name!r} id={self.id!r} episodes={self.episodes_logged}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        facts = {"episodes": self.episodes_logged, "attempt": self.attempt}
        return html(self.name, self.url, facts, self.summary)

    # -- logging -----------------------------------------------------------------

    def log_episodes(self, episodes: Iterable[Any]) -> None:
        """Log finished episodes, in the order given; one alone is welcome too.

        A record that cannot be stored is set aside with its reason, logged as an error and
        counted in ``rejected_records``; it raises nothing. Raises ``RunFinishedError`` once
        the entrypoint has returned.
        """
        self._log("log_episodes", episodes)

    def log_traces(self, traces: Iterable[Any]) -> None:
        """Log bare traces; see ``log_episodes``."""
        self._log("log_traces", traces)

    def _log(self, operation: str, records: Iterable[Any]) -> None:
        self._require_live(operation)
        if isinstance(records, Mapping) or hasattr(records, "to_record"):
            records = [records]
        for record in records:
            self._require_live(operation)
            try:
                self._session.add(record)
            except RecordRejectedError as error:
                self._session.log.error("A record was set aside: %s", error)
            except SpoolError as error:
                self._drop(error)

    def _drop(self, error: SpoolError) -> None:
        with self._lock:
            self._session.dropped += 1
            first = self._session.dropped == 1
        if self._session.plan.on_error == "raise":
            raise error
        if first:
            self._session.log.error("A record was lost: %s. Further ones are counted.", error)

    def update_summary(self, values: Mapping[str, Any]) -> None:
        """Set run-level metrics beside, or over, the computed ones.

        Mappings are merged; numbers that are not finite are dropped.
        """
        self._require_live("update_summary")
        try:
            self._session.update_summary(values)
        except SpoolError as error:
            if self._session.plan.on_error == "raise":
                raise
            self._session.log.error("The summary was not kept: %s", error)

    def _require_live(self, operation: str) -> None:
        if self._ended:
            raise RunFinishedError(
                f"{operation}() was called on the run {self.name!r} after its entrypoint had"
                " ended. Log from inside the entrypoint, and wait there for your threads."
            )

    # -- going on where an earlier attempt stopped ------------------------------------

    @property
    def logged(self) -> Counter[Any]:
        """How many rollouts of each example are logged, by earlier attempts included.

        Keys are the examples' ids, as in ``task.data.idx`` (or ``task.data.id``). In a shard:
        as of its start. Raises ``ConfigurationError`` in any other guest, which does not know.
        """
        self._asked = True
        rollouts = self._session.rollouts()
        if self._is_guest and self._kept is not None:
            return self._kept.copy()
        if self._is_guest:
            raise ConfigurationError(
                "what is logged is known only to the process that the eval runs in: ask there"
                " for run.logged or run.remaining(...)"
            )
        return rollouts

    def remaining(self, items: Iterable[T], *, key: Callable[[T], Any]) -> list[T]:
        """The items that are still to be run; ``key`` gives the id of an item's example.

        An item that comes several times, for as many rollouts, is left out as many times
        as it is logged.
        """
        kept = self.logged
        todo = []
        for item in (items := list(items)):
            example = _as_logged(key(item))
            if kept[example] > 0:
                kept[example] -= 1
            else:
                todo.append(item)
        if self.attempt > 1 or len(todo) < len(items):
            self._session.log.info(
                "Attempt %d: %d kept, %d to run.", self.attempt, len(items) - len(todo), len(todo)
            )
        return todo

    # -- waiting -------------------------------------------------------------------

    def flush(self, timeout: float | None = 30.0) -> bool:
        """Send what was logged, waiting at most ``timeout`` seconds; whether all is sent.

        Under ``on_error="raise"`` raises ``UploadFailedError`` for what failed for good.
        """
        flushed = self._session.flush(timeout)
        self.raise_failures()
        return flushed

    async def aflush(self, timeout: float | None = 30.0) -> bool:  # noqa: ASYNC109 - the same call as flush
        """``flush`` for coroutines: the event loop goes on meanwhile."""
        return await asyncio.to_thread(self.flush, timeout)

    def raise_failures(self) -> None:
        """Raise ``UploadFailedError`` under ``on_error="raise"`` if an upload failed for good."""
        if self._session.plan.on_error == "raise" and (errors := self.errors):
            raise UploadFailedError("; ".join(errors))

    # -- for the entrypoint -------------------------------------------------------------

    @property
    def flow_run_id(self) -> UUID | None:
        """The flow run that this belongs to; None for a run that goes nowhere."""
        return None if self._ticket is None else self._ticket.flow_run.id

    @property
    def log(self) -> Log:
        """The log of the flow run."""
        return self._session.log

    def logged_anywhere(self) -> Counter[Any]:
        """``logged``, of guests on other machines too."""
        self._asked = True
        session = self._session
        return session.logged_anywhere() if isinstance(session, Session) else session.rollouts()

    @property
    def has_ended(self) -> bool:
        """Whether the entrypoint has been left."""
        return self._ended

    def as_shard(self, kept: Counter[Any], token: str) -> None:
        """Become the run of one shard, in another process: of what it is to do, ``kept`` is done.

        Raises ``ShardFailedError`` where ``token`` was used before: whoever runs tasks runs this
        one again, because its worker died, and what that one logged is not in ``kept``.
        """
        self._kept = kept
        if self._ticket is None:
            return
        owner = store.owner_of(self._ticket.run_folder)
        if owner.exists():
            try:
                (owner / f"shard-{token}").touch(exist_ok=False)
            except FileExistsError:
                raise ShardFailedError("the worker of this shard died") from None

    def leave(self, timeout: float) -> None:
        """Hand over what was logged, and have the owner wait no more for this guest: whoever
        runs tasks may keep what it gave them. Used again, it joins again.
        """
        self.flush(timeout)
        self._own, self._pid = None, _NOWHERE

    @property
    def is_here(self) -> bool:
        """Whether this process is the one that the eval runs in; a fork of it is not."""
        return self._pid == os.getpid() and not self._is_guest

    def end(self) -> None:
        """Take nothing more. Says so if an attempt seems to have run everything again."""
        if not self.is_here:
            return
        if not self._ended and self._before and not self._asked:
            now = self._session.rollouts()
            again = sum(now[example] - count for example, count in self._before.items())
            if again:
                self._session.log.warning(
                    "Attempt %d logged %d more episode(s) of examples that an earlier attempt had"
                    " logged already; all of them count. To run only what is missing, loop over"
                    " run.remaining(tasks, key=...).",
                    self.attempt,
                    again,
                )
        self._ended = True


def _as_logged(example: Any) -> Any:
    """An example's id as it reads in a record: a UUID is text there."""
    if example is None or isinstance(example, int | str):
        return example
    return encoding.decode(encoding.encode({"id": example}))["id"]


def _guest_run(ticket: Ticket) -> EvalRun:
    owner = _owners.get((os.getpid(), ticket.run_folder))
    return EvalRun(ticket) if owner is None else owner


def _untracked_run(plan: EvalPlan, attempt: int) -> EvalRun:
    return EvalRun(Untracked(plan, get_logger("prefect_prime"), attempt))
