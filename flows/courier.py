"""One closed segment, carried to one sink and entered into the ledger."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from prime_traces import LineFormat, TracesClient

from prefect_prime.flows.recording import Log
from prefect_prime.platform_client import PlatformClient
from prefect_prime.spool import Delivery, Ledger, Spool
from prefect_prime.spool.requests import SamplesRequest, content_digest, plan_samples
from prefect_prime.tasks import SamplesUpload, TracesUpload, upload_samples, upload_traces

#: Records that a message names; the others it counts.
_NAMED = 5


@dataclass(frozen=True)
class Uplink:
    """Where one run's records go. Without a traces client, traces are not sent."""

    evaluation_id: str
    platform: PlatformClient
    traces: TracesClient | None
    context: Mapping[str, str]


class Journal:
    """How far the samples of one segment are, kept in the ledger."""

    def __init__(self, ledger: Ledger, segment: int, requests: Sequence[SamplesRequest]) -> None:
        self._ledger = ledger
        self._segment = segment
        self._requests = requests

    def begin(self, request: int) -> None:
        """It is about to be sent."""
        self._ledger.deliveries.begin(self._segment, "samples", request)

    def answered(self, requests: int, blamed: Mapping[str, str]) -> None:
        """So many are answered, and no further one was processed."""
        answered = self._requests[:requests]
        self._ledger.deliveries.progress(
            self._segment,
            "samples",
            requests=requests,
            rows=sum(owner not in blamed for each in answered for owner in each.owners),
            stored=sum(record not in blamed for each in answered for record in each.completes),
            blamed=blamed,
        )

    def rows_before(self) -> int:
        """How many rows of the evaluation were stored before the next request."""
        return self._ledger.deliveries.rows("samples")


class Courier:
    """Carries the segments of one spool. ``call`` runs a task as one of the flow run's.

    ``report`` is told of records that a sink will never have: the sink, how many, and why.
    """

    def __init__(
        self,
        spool: Spool,
        uplink: Uplink,
        log: Log,
        *,
        call: Callable[..., Any],
        report: Callable[[str, int, str], None],
    ) -> None:
        self._spool = spool
        self._uplink = uplink
        self._log = log
        self._call = call
        self._report = report

    def deliver(self, delivery: Delivery, *, first: bool) -> bool:
        """Carry one segment; False where its sink turned out to be off. ``first``: nothing was
        acknowledged there yet. Raises what the upload tasks raise, and ``sqlite3.Error``.
        """
        if delivery.sink == "traces":
            return self._send_traces(delivery, first=first)
        self._send_samples(delivery)
        return True

    def _send_traces(self, delivery: Delivery, *, first: bool) -> bool:
        if self._uplink.traces is None:
            raise RuntimeError("no traces client")
        upload = TracesUpload(
            _label(delivery),
            partial(self._spool.payload, delivery, self._uplink.evaluation_id),
            self._cache_key(delivery),
            records=delivery.records,
            line_format=LineFormat.EPISODE if delivery.kind == "episode" else LineFormat.TRACE,
            context=dict(self._uplink.context),
            first=first,
        )
        sent = self._call(upload_traces, self._uplink.traces, upload)
        if not isinstance(sent, dict):
            self._log.info("Prime Traces is off for this account; traces are not sent.")
            self._spool.traces_off()
            return False
        ids = self._spool.ledger.record_ids(delivery.segment) if sent["blamed"] else []
        self._settle(delivery, {ids[position]: reason for position, reason in sent["blamed"]})
        return True

    def _send_samples(self, delivery: Delivery) -> None:
        evaluation_id = self._uplink.evaluation_id
        plan = plan_samples(self._spool, delivery)
        upload = SamplesUpload(
            _label(delivery),
            evaluation_id,
            plan.requests,
            self._cache_key(delivery),
            sent=delivery.requests,
            doubted_at=delivery.changed_at if delivery.in_doubt else None,
            blamed=delivery.blamed,
            journal=Journal(self._spool.ledger, delivery.segment, plan.requests),
        )
        blamed: dict[str, str] = {}
        if plan.requests:
            blamed = self._call(upload_samples, self._uplink.platform, upload)
        self._settle(delivery, {**blamed, **plan.unfit}, skipped=plan.without_row)

    def _cache_key(self, delivery: Delivery) -> str:
        content = self._spool.ledger.segment_digest(delivery.segment)
        return content_digest(self._uplink.evaluation_id, delivery.sink, content)

    def _settle(self, delivery: Delivery, blamed: Mapping[str, str], *, skipped: int = 0) -> None:
        detail = _named(blamed) if blamed else None
        self._spool.ledger.deliveries.settle(
            delivery.segment,
            delivery.sink,
            "acknowledged" if len(blamed) < delivery.records else "failed",
            stored=delivery.records - len(blamed) - skipped,
            failed=len(blamed),
            skipped=skipped,
            detail=detail,
        )
        if detail is not None:
            self._report(delivery.sink, len(blamed), detail)


def _named(blamed: Mapping[str, str]) -> str:
    """Which records were refused, and why; the first few of them."""
    named = [f"{record}: {reason}" for record, reason in list(blamed.items())[:_NAMED]]
    if len(blamed) > _NAMED:
        named.append(f"and {len(blamed) - _NAMED} more")
    return "; ".join(named)


def _label(delivery: Delivery) -> str:
    records = f"{delivery.records} {delivery.kind}{'' if delivery.records == 1 else 's'}"
    size = f"{delivery.bytes / 1e6:.1f} MB"
    return f"{delivery.segment} · {records} · {size if size != '0.0 MB' else '<0.1 MB'}"
