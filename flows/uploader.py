"""The threads that carry closed segments to their sinks while the eval runs.

They belong to the run, not to the flow's task runner: that one is the user's, and may be on
another machine. Each upload is a task run of the flow, made in a copy of its context.

Samples go one request at a time, in order, because only then is the number of stored rows
known. A transient failure leaves its segment where it is and holds the sink back, longer
each time; then one segment probes at a time. Nothing is given up for being late.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from logging import Logger, LoggerAdapter
from typing import Any

from prime_traces import LineFormat, TracesClient

from prefect_prime.errors import is_refusal, is_transient
from prefect_prime.platform_client import PlatformClient
from prefect_prime.spool import SINKS, Delivery, Ledger, Sink, Spool
from prefect_prime.spool.requests import SamplesRequest, content_digest, plan_samples
from prefect_prime.tasks import SamplesUpload, TracesUpload, upload_samples, upload_traces

#: Seconds that a sink is left alone after its first failure; doubled with each further one.
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
#: Seconds at most that a service's own ``Retry-After`` is honoured.
_LONGEST_TOLD = 60.0


@dataclass(frozen=True)
class Uplink:
    """Where one run's records go. Without a traces client, traces are not sent."""

    evaluation_id: str
    platform: PlatformClient
    traces: TracesClient | None
    context: Mapping[str, str]


@dataclass
class _Lane:
    """How one sink is doing."""

    slots: int
    busy: int = 0
    failures: int = 0
    resume_at: float = 0.0
    reached: bool = False


class _Journal:
    """How far the samples of one segment are, kept in the ledger."""

    def __init__(self, ledger: Ledger, segment: int, requests: Sequence[SamplesRequest]) -> None:
        self._ledger = ledger
        self._segment = segment
        self._requests = requests

    def begin(self, request: int) -> None:
        self._ledger.deliveries.begin(self._segment, "samples", request)

    def stored(self, requests: int) -> None:
        answered = self._requests[:requests]
        self._ledger.deliveries.progress(
            self._segment,
            "samples",
            requests=requests,
            rows=sum(request.rows for request in answered),
            stored=sum(request.records for request in answered),
        )

    def rows_before(self) -> int:
        return self._ledger.deliveries.rows("samples")


class Uploader:
    """Sends what the spool has closed. ``start`` it inside the flow run's context."""

    def __init__(
        self,
        spool: Spool,
        uplink: Uplink,
        logger: "Logger | LoggerAdapter[Any]",
        *,
        workers: int,
        segment_age: float,
        collect: Callable[[], object],
    ) -> None:
        self._spool = spool
        self._uplink = uplink
        self._logger = logger
        self._segment_age = segment_age
        self._collect = collect
        self._changed = threading.Condition()
        self._stopping = False
        self._in_flight: set[tuple[int, Sink]] = set()
        self._lanes: dict[Sink, _Lane] = {"traces": _Lane(workers), "samples": _Lane(1)}
        self._context = copy_context()
        self._threads = [
            threading.Thread(target=self._work, name=f"prime-upload-{number}", daemon=True)
            for number in range(workers)
        ]

    # -- for the run -------------------------------------------------------------

    def start(self) -> None:
        """Begin to send; again at each attempt of the flow run, whose context it then takes."""
        self._context = copy_context()
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
                    self._changed.wait(_FIRST_PAUSE)

    def _next(self, sink: Sink, lane: _Lane, now: float) -> Delivery | None:
        slots = 1 if lane.failures else lane.slots
        if lane.busy >= slots or lane.resume_at > now:
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

    def _deliver(self, delivery: Delivery) -> None:
        try:
            send = self._send_traces if delivery.sink == "traces" else self._send_samples
            acknowledged = send(delivery)
        except sqlite3.Error:
            raise  # not the sink's
        except Exception as error:  # noqa: BLE001 - judged, and what is not transient is counted as lost
            self._judge(delivery, error)
        else:
            self._answered(delivery.sink, acknowledged=acknowledged)

    def _send_traces(self, delivery: Delivery) -> bool:
        """Send to the traces; False where they turned out to be off."""
        if self._uplink.traces is None:
            raise RuntimeError("no traces client")
        data = self._spool.payload(delivery, self._uplink.evaluation_id)
        upload = TracesUpload(
            _label(delivery),
            data,
            content_digest(self._uplink.evaluation_id, "traces", data),
            line_format=LineFormat.EPISODE if delivery.kind == "episode" else LineFormat.TRACE,
            context=dict(self._uplink.context),
            first=not self._lanes["traces"].reached,
        )
        receipt = self._context.copy().run(upload_traces, self._uplink.traces, upload)
        if not isinstance(receipt, str):
            self._logger.info("Prime Traces is off for this account; traces are not sent.")
            self._spool.traces_off()
            return False
        self._spool.ledger.deliveries.settle(
            delivery.segment, "traces", "acknowledged", stored=delivery.records
        )
        return True

    def _send_samples(self, delivery: Delivery) -> bool:
        """Send to the samples."""
        evaluation_id = self._uplink.evaluation_id
        plan = plan_samples(self._spool, delivery)
        data = self._spool.payload(delivery, evaluation_id)
        upload = SamplesUpload(
            _label(delivery),
            evaluation_id,
            plan.requests,
            content_digest(evaluation_id, "samples", data),
            sent=delivery.requests,
            doubted_at=delivery.changed_at if delivery.in_doubt else None,
            journal=_Journal(self._spool.ledger, delivery.segment, plan.requests),
        )
        if plan.requests:
            self._context.copy().run(upload_samples, self._uplink.platform, upload)
        detail = None
        if plan.oversized:
            detail = f"too large for the samples table: {', '.join(plan.oversized)}"
            self._report("samples", len(plan.oversized), detail)
        self._spool.ledger.deliveries.settle(
            delivery.segment,
            "samples",
            "acknowledged",
            stored=sum(request.records for request in plan.requests),
            failed=len(plan.oversized),
            skipped=plan.without_row,
            detail=detail,
        )
        return True

    # -- when it fails --------------------------------------------------------------------

    def _judge(self, delivery: Delivery, error: Exception) -> None:
        sink = delivery.sink
        if is_refusal(error):
            self._spool.ledger.deliveries.settle(
                delivery.segment, sink, "refused", stored=delivery.stored, detail=_describe(error)
            )
            self._report(sink, delivery.records, f"refused: {_describe(error)}")
        elif is_transient(error):
            self._hold_back(sink, error)
        else:
            self._give_up(delivery, error)

    def _give_up(self, delivery: Delivery, error: Exception) -> None:
        lost = delivery.records - delivery.stored
        self._spool.ledger.deliveries.settle(
            delivery.segment,
            delivery.sink,
            "failed",
            stored=delivery.stored,
            failed=lost,
            detail=_describe(error),
        )
        self._report(delivery.sink, lost, _describe(error))

    def _report(self, sink: Sink, records: int, reason: str) -> None:
        self._logger.error(
            "%d record(s) were not stored by the %s sink: %s. They stay in the spool %s.",
            records,
            sink,
            reason,
            self._spool.folder,
        )

    def _hold_back(self, sink: Sink, error: Exception) -> None:
        with self._changed:
            lane = self._lanes[sink]
            lane.failures += 1
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (lane.failures - 1))
            told = min(_LONGEST_TOLD, getattr(error, "retry_after", None) or 0.0)
            lane.resume_at = time.monotonic() + max(pause, told)
            began = lane.failures == 1
        if began:
            self._logger.warning(
                "The %s sink does not take uploads (%s); records wait in the spool and the eval"
                " goes on.",
                sink,
                _describe(error),
            )

    def _answered(self, sink: Sink, *, acknowledged: bool) -> None:
        with self._changed:
            lane = self._lanes[sink]
            was_out, lane.failures = lane.failures > 0, 0
            lane.reached |= acknowledged
        if was_out:
            self._logger.info("The %s sink takes uploads again.", sink)


def _label(delivery: Delivery) -> str:
    records = f"{delivery.records} {delivery.kind}{'' if delivery.records == 1 else 's'}"
    size = f"{delivery.bytes / 1e6:.1f} MB"
    return f"{delivery.segment} · {records} · {size if size != '0.0 MB' else '<0.1 MB'}"


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
