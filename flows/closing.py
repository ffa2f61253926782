"""What is known of an eval at its end, as the final artifacts show it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prefect_prime.endings import Ending
from prefect_prime.failures import Failure
from prefect_prime.flows.markdown import cell
from prefect_prime.flows.options import EvalPlan
from prefect_prime.histogram import Bar
from prefect_prime.spool import Sink, Spool, Tally
from prefect_prime.tasks import OpenedEvaluation

if TYPE_CHECKING:
    from prefect_prime.flows.session import Session

#: Rows of the table of uploads at most: it is one JSON value on the Prefect server.
_ROWS = 500

Row = dict[str, str | int]


@dataclass(frozen=True)
class Closing:
    """``status`` is the evaluation's; None where it was left open, and the ``note`` says why.
    ``reason`` is why the flow run did not complete.
    """

    ending: Ending
    status: str | None
    reason: str | None
    note: str | None
    plan: EvalPlan
    evaluation: OpenedEvaluation | None
    predecessor: str | None
    attempt: int
    seconds: float | None
    episodes: int
    metrics: Mapping[str, Any]
    rewards: Sequence[Bar]
    failures: Sequence[Failure]
    tallies: Mapping[Sink, Tally]
    rejected: int
    dropped: int
    torn: int
    uploads: Sequence[Row]
    judgements: Sequence[Mapping[str, Any]]

    @classmethod
    def of(
        cls, session: "Session", ending: Ending, status: str | None, note: str | None
    ) -> "Closing":
        """What a session knows."""
        began = session.flow_run.start_time
        counted = session.counted()
        return cls(
            ending=ending,
            status=status,
            reason=ending.message,
            note=note,
            plan=session.plan,
            evaluation=session.evaluation,
            predecessor=session.facts.predecessor,
            attempt=session.attempt,
            seconds=None if began is None else time.time() - began.timestamp(),
            episodes=session.episodes,
            metrics=session.metrics(),
            rewards=counted.rewards(),
            failures=counted.failures(),
            tallies=session.tallies(),
            rejected=session.rejected,
            dropped=session.dropped,
            torn=session.spool.torn,
            uploads=uploads(session.spool),
            judgements=session.facts.judgements,
        )

    @property
    def title(self) -> str:
        """The outcome in a word or two."""
        status = self.status or self.ending.status
        if status == "CANCELLED":
            return "Cancelled"
        if status == "FAILED":
            return "Crashed" if self.ending.crashed else "Failed"
        if self.regressed:
            return "Regressed"
        if self.status is None:
            return "Offline" if self.evaluation is None else "Left open"
        return "Completed"

    @property
    def regressed(self) -> bool:
        """Whether a gate did not hold."""
        return any(each["verdict"] == "regressed" for each in self.judgements)

    def _gates_that_failed(self) -> str:
        return "; ".join(
            each["reason"] for each in self.judgements if each["verdict"] == "regressed"
        )

    @property
    def losses(self) -> list[str]:
        """What is not where it should be, a line for each."""
        lines = []
        for sink, tally in self.tallies.items():
            if tally.failed:
                lines.append(f"{tally.failed:,} not stored by {sink}")
            if tally.pending:
                lines.append(f"{tally.pending:,} still to be sent to {sink}")
        counts = {"rejected": self.rejected, "dropped": self.dropped, "torn": self.torn}
        return [*lines, *(f"{count:,} {name}" for name, count in counts.items() if count)]

    def payload(self) -> dict[str, Any]:
        """What an event carries."""
        return {
            "status": self.status,
            "reason": self.reason or self.note or self._gates_that_failed() or None,
            "url": None if self.evaluation is None else self.evaluation.url,
            "attempt": self.attempt,
            "episodes": self.episodes,
            "metrics": dict(self.metrics),
            "losses": {
                sink: {"failed": tally.failed, "pending": tally.pending}
                for sink, tally in self.tallies.items()
            },
            "rejected": self.rejected,
            "dropped": self.dropped,
            "gates": list(self.judgements),
        }


def uploads(spool: Spool) -> list[Row]:
    """A row per segment and sink, and per rejected record: what is in trouble first."""
    rejections = spool.ledger.rejections(_ROWS)
    rows: list[Row] = [
        {
            "segment": "",
            "sink": "",
            "state": "rejected",
            "records": 1,
            "not stored": 1,
            "bytes": "",
            "detail": cell(f"{kind} {record or ''}: {reason}"),
        }
        for kind, record, reason in rejections
    ]
    for number, sink, state, records, lost, size, detail in spool.ledger.deliveries.overview(_ROWS):
        rows.append(
            {
                "segment": number,
                "sink": sink,
                "state": {"skipped": "not applicable"}.get(state, state),
                "records": records,
                "not stored": lost,
                "bytes": size,
                "detail": cell(detail or ""),
            }
        )
    if len(rows) > _ROWS:
        rest = {"segment": "…", "state": "", "records": "", "not stored": "", "bytes": ""}
        rows[_ROWS:] = [{**rest, "sink": "", "detail": "further rows are left out"}]
    return rows
