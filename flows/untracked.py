"""A run that goes nowhere: no key, or ``PRIME_RUNS_MODE=disabled``.

The eval does what it always does and gets its metrics; nothing is written or sent.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from logging import Logger, LoggerAdapter
from typing import Any

from prefect_prime import records
from prefect_prime.flows.options import EvalPlan
from prefect_prime.gates import Judgement, judge
from prefect_prime.metrics import SummaryAccumulator, merge, overlay
from prefect_prime.spool import SINKS, Sink, Tally
from prefect_prime.tasks import OpenedEvaluation


class Untracked:
    """In place of a ``Session``."""

    evaluation: OpenedEvaluation | None = None
    rejected = 0
    place = "nowhere"

    def __init__(self, plan: EvalPlan, log: "Logger | LoggerAdapter[Any]", attempt: int) -> None:
        self.plan = plan
        self.log = log
        self.attempt = attempt
        self.errors: list[str] = []
        self.episodes = 0
        self.records = 0
        self.dropped = 0
        self._lock = threading.Lock()
        self._metrics = SummaryAccumulator()
        self._given: dict[str, Any] = {}

    def add(self, record: object) -> None:
        """Count one record. Raises ``RecordRejectedError`` for what is none."""
        mapping = records.to_mapping(record)
        kind = records.kind_of(mapping)
        with self._lock:
            self.records += 1
            self.episodes += kind == "episode"
            try:
                self._metrics.add(kind, mapping)
            except Exception as error:  # noqa: BLE001 - as in the spool: a score that cannot be read costs its part of a mean
                self.log.warning("A record does not count in the metrics: %s", error)

    def rollouts(self) -> Counter[Any]:
        """Nothing is kept from one attempt to the next."""
        return Counter()

    def update_summary(self, values: Mapping[str, Any]) -> None:
        """Lay run-level metrics of the user's over the computed ones."""
        with self._lock:
            self._given = overlay(self._given, values)

    def metrics(self) -> dict[str, Any]:
        """Computed metrics, then what the user gave."""
        with self._lock:
            return merge(self._metrics.summary(), self._given)

    def tallies(self) -> dict[Sink, Tally]:
        """Nothing is lost that was never to be sent."""
        return dict.fromkeys(SINKS, Tally(skipped=self.records))

    def flush(self, timeout: float | None) -> bool:  # noqa: ARG002 - the Session's signature
        """There is nothing to send."""
        return True

    drain = flush

    def judge(self, *, sent: bool) -> list[Judgement]:  # noqa: ARG002 - the Session's signature
        """Have the plan's gates judge what was logged; there is nothing to compare it with."""
        return judge(self.plan.gates, self.metrics(), None, None)
