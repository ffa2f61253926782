"""The threads that carry closed segments to their sinks while the eval runs.

They belong to the run, not to the flow's task runner: that one is the user's, and may be on
another machine. Each upload is a task run of the flow, made in a copy of its context.

Samples go one request at a time, in order, because only then is the number of stored rows
known. An outage is waited out here, however long it is: see ``lanes``.
"""

import sqlite3
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from prefect_prime.errors import is_settings_fault, is_transient
from prefect_prime.flows.courier import Courier, Uplink
from prefect_prime.flows.lanes import Lane
from prefect_prime.flows.recording import Log
from prefect_prime.flows.upload_limit import upload_slot
from prefect_prime.spool import SINKS, Delivery, Sink, Spool

#: Seconds until a disk that failed is tried again.
_DISK_PAUSE = 1.0


class Uploader:
    """Sends what the spool has closed. ``start`` it inside the flow run's context."""

    def __init__(
        self,
        spool: Spool,
        uplink: Uplink,
        log: Log,
        *,
        workers: int,
        segment_age: float,
        collect: Callable[[], object],
    ) -> None:
        self._spool = spool
        self._log = log
        self._segment_age = segment_age
        self._collect = collect
        self._courier = Courier(spool, uplink, log, call=self._call, report=self._report)
        self._changed = threading.Condition()
        self._stopping = False
        self._in_flight: set[tuple[int, Sink]] = set()
        self._lanes: dict[Sink, Lane] = {"traces": Lane(workers), "samples": Lane(1)}
        self._context = copy_context()
        self._threads = [
            threading.Thread(target=self._work, name=f"prime-upload-{number}", daemon=True)
            for number in range(workers)
        ]
        if uplink.traces is None:  # left from an attempt that had a traces service
            spool.traces_off()

    # -- for the run -------------------------------------------------------------

    def start(self) -> None:
        """Begin to send; again at each attempt of the flow run, whose context it then takes."""
        self._context = copy_context()
        for lane in self._lanes.values():
            lane.refusal = None
        if not any(thread.ident for thread in self._threads):
            for thread in self._threads:
                thread.start()
        self.wake()

    def wake(self) -> None:
        """There may be something new to send."""
        with self._changed:
            self._changed.notify_all()

    def drain(self, timeout: float | None) -> bool:
        """Wait until everything that is closed has been dealt with, at most ``timeout``
        seconds; whether it has.
        """
        with self._changed:
            return self._changed.wait_for(self._idle, timeout)

    def stop(self, timeout: float | None) -> bool:
        """Take nothing new; whether what was under way ended within ``timeout`` seconds."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._in_flight, timeout)

    def outages(self) -> dict[Sink, float]:
        """The sinks that take nothing at the moment, and the Unix times since when."""
        with self._changed:
            lanes = self._lanes.items()
            return {sink: lane.out_since for sink, lane in lanes if lane.out_since is not None}

    def _idle(self) -> bool:
        return not self._in_flight and not any(
            self._spool.ledger.deliveries.pending(sink, 1) for sink in SINKS
        )

    # -- the threads -----------------------------------------------------------------

    def _work(self) -> None:
        while (delivery := self._take()) is not None:
            try:
                self._deliver(delivery)
            except Exception as error:  # noqa: BLE001 - the ledger's own trouble: the eval goes on, and this again
                self._hold_back(delivery.sink, error)
            finally:
                with self._changed:
                    self._in_flight.discard((delivery.segment, delivery.sink))
                    self._lanes[delivery.sink].busy -= 1
                    self._changed.notify_all()

    def _take(self) -> Delivery | None:
        """The next segment that may go now; waits for one, and ages the open segments."""
        while True:
            with self._changed:
                if self._stopping:
                    return None
                now = time.monotonic()
                for sink, lane in self._lanes.items():
                    if (delivery := self._next(sink, lane, now)) is not None:
                        self._in_flight.add((delivery.segment, sink))
                        lane.busy += 1
                        return delivery
                age = self._spool.oldest()
                if age is None or age < self._segment_age:
                    self._changed.wait(self._pause(age, now))
                    collect = not self._stopping
                else:
                    collect = False
            if collect:
                self._collect()
            elif not self._spool.seal():
                with self._changed:
                    self._changed.wait(_DISK_PAUSE)

    def _next(self, sink: Sink, lane: Lane, now: float) -> Delivery | None:
        if lane.refusal is not None and self._spool.ledger.deliveries.pending(sink, 1):
            self._spool.ledger.deliveries.refuse_pending(sink, lane.refusal)
            self._changed.notify_all()
        if not lane.is_open(now):
            return None
        return next(
            (
                delivery
                for delivery in self._spool.ledger.deliveries.pending(sink, lane.busy + 1)
                if (delivery.segment, sink) not in self._in_flight
            ),
            None,
        )

    def _pause(self, age: float | None, now: float) -> float | None:
        """Seconds until there may be something to do that nobody will wake us for."""
        times = [lane.resume_at - now for lane in self._lanes.values() if lane.resume_at > now]
        if age is not None:
            times.append(max(0.0, self._segment_age - age))
        return min(times, default=self._segment_age)

    # -- one delivery ------------------------------------------------------------------

    def _call(self, task: Any, *arguments: Any) -> Any:
        return self._context.copy().run(task, *arguments)

    def _deliver(self, delivery: Delivery) -> None:
        lane = self._lanes[delivery.sink]
        try:
            acknowledged = self._context.copy().run(self._carry, delivery, lane)
        except sqlite3.Error:
            raise  # not the sink's
        except Exception as error:  # noqa: BLE001 - judged, and what is not transient is counted as lost
            self._judge(delivery, error)
            return
        if acknowledged is None:
            return
        with self._changed:
            was_out = lane.answered(acknowledged=acknowledged)
        if was_out is not None:
            behind = self._spool.ledger.deliveries.tally(delivery.sink).pending
            self._log.info(
                "The %s sink takes uploads again, after %.0f s; %d record(s) are still to go.",
                delivery.sink,
                was_out,
                behind,
            )

    def _carry(self, delivery: Delivery, lane: Lane) -> bool | None:
        """Whether it was acknowledged; None where the run stopped before its turn came."""
        with upload_slot(lambda: self._stopping) as granted:
            return self._courier.deliver(delivery, first=not lane.reached) if granted else None

    def _judge(self, delivery: Delivery, error: Exception) -> None:
        sink = delivery.sink
        if is_transient(error):
            self._hold_back(sink, error)
        elif is_settings_fault(error):
            self._refused(sink, _describe(error))
        else:
            reason = _describe(error)
            lost = self._spool.ledger.deliveries.give_up(delivery.segment, sink, reason)
            self._report(sink, lost, reason)

    def _report(self, sink: str, records: int, reason: str) -> None:
        self._log.error(
            "%d record(s) were not stored by the %s sink: %s. They stay in the spool %s.",
            records,
            sink,
            reason,
            self._spool.folder,
        )

    def _refused(self, sink: Sink, reason: str) -> None:
        """The settings are not good enough: said once, and nothing more is tried with them."""
        with self._changed:
            said, self._lanes[sink].refusal = self._lanes[sink].refusal, reason
        records = self._spool.ledger.deliveries.refuse_pending(sink, reason)
        if said is None:
            self._report(sink, records, f"refused: {reason}")

    def _hold_back(self, sink: Sink, error: Exception) -> None:
        with self._changed:
            began = self._lanes[sink].hold_back(getattr(error, "retry_after", None))
        if began:
            self._log.warning(
                "The %s sink does not take uploads (%s); records wait in the spool and the eval"
                " goes on.",
                sink,
                _describe(error),
            )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
