"""``EvalRun``: what an entrypoint logs into, and ``current_run``, which finds it.

Logging costs an encoding and a write to the local disk. Nothing here waits for the
platform but ``flush``, and under ``on_error="warn"`` nothing of the platform's trouble is
raised.
"""

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from prefect_prime.errors import (
    ConfigurationError,
    RecordRejectedError,
    RunFinishedError,
    SpoolError,
    UploadFailedError,
)
from prefect_prime.flows.session import Session
from prefect_prime.flows.untracked import Untracked

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


@contextmanager
def entered(run: "EvalRun") -> Iterator[None]:
    """Make a run the current one for the code inside."""
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)


class EvalRun:
    """One attempt of a tracked eval: somewhere to put episodes, and what became of them.

    Records are mappings, or objects with ``to_record()`` such as verifiers' ``Episode`` and
    ``Trace``. A mapping with ``traces`` is an episode; one with ``sample_id`` and no
    ``traces`` is a v0 sample row and goes to the samples only; anything else is a bare trace
    and goes to the traces only. Calls are safe from coroutines and threads.
    """

    def __init__(self, session: Session | Untracked) -> None:
        self._session = session
        self._ended = False
        self._lock = threading.Lock()
        #: Records that the spool itself could not take: the disk is full, say.
        self.dropped_records = 0

    def __repr__(self) -> str:
        return f"<EvalRun {self.name!r} id={self.id!r} episodes={self.episodes_logged}>"

    @property
    def id(self) -> str | None:
        """The evaluation's id on the platform; None while there is none."""
        evaluation = self._session.evaluation
        return None if evaluation is None else evaluation.id

    @property
    def url(self) -> str | None:
        """The evaluation's page; None while there is none."""
        evaluation = self._session.evaluation
        return None if evaluation is None else evaluation.url

    @property
    def name(self) -> str:
        """The evaluation's name."""
        return self._session.plan.spec.name

    @property
    def attempt(self) -> int:
        """Which attempt of the flow run this is, from 1."""
        return self._session.attempt

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
            self.dropped_records += 1
            first = self.dropped_records == 1
        if self._session.plan.on_error == "raise":
            raise error
        if first:
            self._session.log.error("A record was lost: %s. Further ones are counted.", error)

    def update_summary(self, values: Mapping[str, Any]) -> None:
        """Set run-level metrics beside, or over, the computed ones.

        Mappings are merged; numbers that are not finite are dropped.
        """
        self._require_live("update_summary")
        self._session.update_summary(values)

    def _require_live(self, operation: str) -> None:
        if self._ended:
            raise RunFinishedError(
                f"{operation}() was called on the run {self.name!r} after its entrypoint had"
                " ended. Log from inside the entrypoint, and wait there for your threads."
            )

    # -- waiting -------------------------------------------------------------------

    def flush(self, timeout: float | None = 30.0) -> bool:
        """Send what was logged, waiting at most ``timeout`` seconds; whether all is sent.

        Under ``on_error="raise"`` raises ``UploadFailedError`` for what failed for good.
        """
        flushed = self._session.drain(timeout)
        self.raise_failures()
        return flushed

    async def aflush(self, timeout: float | None = 30.0) -> bool:  # noqa: ASYNC109 - the same call as flush
        """``flush`` for coroutines: the event loop goes on meanwhile."""
        return await asyncio.to_thread(self.flush, timeout)

    def raise_failures(self) -> None:
        """Raise ``UploadFailedError`` under ``on_error="raise"`` if an upload failed for good."""
        if self._session.plan.on_error == "raise" and (errors := self.errors):
            raise UploadFailedError("; ".join(errors))

    # -- what became of it -------------------------------------------------------------

    @property
    def episodes_logged(self) -> int:
        """Episodes taken in, in all attempts; an episode logged twice counts once."""
        return self._session.episodes

    @property
    def summary(self) -> dict[str, Any]:
        """``avg_reward``, ``avg_metrics``, ``avg_error`` so far, and what the user set."""
        return self._session.metrics()

    @property
    def pending_records(self) -> dict[str, int]:
        """By sink: records that are still to be sent."""
        return {sink: losses["pending"] for sink, losses in self._session.losses().items()}

    @property
    def failed_records(self) -> dict[str, int]:
        """By sink: records that it could not store. They stay in the spool."""
        return {sink: losses["failed"] for sink, losses in self._session.losses().items()}

    @property
    def rejected_records(self) -> int:
        """Records that could not be stored at all, each logged with its reason."""
        return self._session.rejected

    @property
    def errors(self) -> list[str]:
        """What went wrong for good, a line each."""
        return self._session.errors

    # -- for the entrypoint -------------------------------------------------------------

    def end(self) -> None:
        """Take nothing more."""
        self._ended = True
