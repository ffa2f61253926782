"""What is known of one evaluation, kept in its spool's ledger: enough for another process.

The ledger is the only truth about the evaluation's id, its generation and whether its
entrypoint has returned. A flow run has one evaluation at a time; the next generation is opened
after one was closed, and every record of the spool goes into it.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prefect_prime.endings import Ending
from prefect_prime.environments import EnvironmentRef
from prefect_prime.flows.options import EvalPlan
from prefect_prime.spool import Ledger
from prefect_prime.spool.lease import Lease
from prefect_prime.tasks import EvaluationSpec, OpenedEvaluation


class EvaluationFacts:
    """Typed access to the facts of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    # -- the plan ------------------------------------------------------------------

    def save_plan(self, plan: EvalPlan, *, origin: str | None) -> None:
        """Keep what the evaluation is opened with, and on which platform; no credential, but
        maybe a block's name.
        """
        kept = ("credentials", "expected", "evaluation_id", "hosted", "on_error", "flow_name")
        known = {key: getattr(plan.without_secret(), key) for key in kept}
        self._ledger.set_fact("plan", {"spec": asdict(plan.spec), **known})
        if origin is not None:
            self._ledger.set_fact("origin", origin)

    def plan(self) -> EvalPlan | None:
        """The plan of the latest attempt; None where none was saved."""
        known = self._ledger.fact("plan")
        if known is None:
            return None
        spec = known.pop("spec")
        spec["environments"] = [EnvironmentRef(**each) for each in spec["environments"]]
        return EvalPlan(spec=EvaluationSpec(**spec), **known)

    @property
    def origin(self) -> str | None:
        """``scheme://host:port`` of the platform; None where none was known yet."""
        origin: str | None = self._ledger.fact("origin")
        return origin

    # -- the evaluation ---------------------------------------------------------------

    @property
    def evaluation(self) -> OpenedEvaluation | None:
        """The evaluation of the present generation, once it is open."""
        known = self._ledger.fact("evaluation")
        return None if known is None else OpenedEvaluation(**known)

    def opened(self, evaluation: OpenedEvaluation) -> None:
        """It is open: the intent is fulfilled."""
        with self._ledger.transaction():
            self._ledger.set_fact("evaluation", asdict(evaluation))
            self._ledger.set_fact("intent", None)

    @property
    def at(self) -> float | None:
        """When it was last about to be created; None once it is, or before."""
        at: float | None = self._ledger.fact("intent")
        return at

    def save(self) -> None:
        """It is about to be created, now."""
        self._ledger.set_fact("intent", time.time())

    def withdraw(self) -> None:
        """It was surely not created."""
        self._ledger.set_fact("intent", None)

    @property
    def generation(self) -> int:
        """How many evaluations this flow run has had, this one included."""
        return int(self._ledger.fact("generation", 1))

    @property
    def predecessor(self) -> str | None:
        """The id of the evaluation before this one."""
        before: str | None = self._ledger.fact("predecessor")
        return before

    def next_generation(self) -> None:
        """The evaluation is closed: another one is to be opened.

        Whoever calls this has the spool send everything again.
        """
        before = self.evaluation
        with self._ledger.transaction():
            self._ledger.set_fact("generation", self.generation + 1)
            self._ledger.set_fact("predecessor", before and before.id)
            for key in ("evaluation", "intent", "ending", "closed", "unsure", "artifacts"):
                self._ledger.set_fact(key, None)

    def succeed(self, evaluation_id: str, generation: int) -> None:
        """An evaluation of this flow run is known whose records are in another spool."""
        with self._ledger.transaction():
            self._ledger.set_fact("generation", generation + 1)
            self._ledger.set_fact("predecessor", evaluation_id)

    def transaction(self) -> AbstractContextManager[None]:
        """Of the ledger: what is done inside is done as a whole."""
        return self._ledger.transaction()

    # -- its artifacts ----------------------------------------------------------------------

    @property
    def artifacts(self) -> dict[str, str]:
        """The ids of what shows this generation's evaluation on the Prefect server, by name."""
        shown: dict[str, str] | None = self._ledger.fact("artifacts")
        return shown or {}

    def show(self, artifacts: dict[str, str]) -> None:
        """They are there: whoever goes on from here updates them."""
        self._ledger.set_fact("artifacts", artifacts)

    # -- its end -------------------------------------------------------------------------

    @property
    def returned(self) -> bool:
        """Whether the entrypoint has returned: it is not to be called again."""
        return bool(self._ledger.fact("returned"))

    def set_returned(self) -> None:
        """The entrypoint has returned."""
        self._ledger.set_fact("returned", time.time())

    @property
    def ending(self) -> Ending | None:
        """How the evaluation is to be closed, once that is decided."""
        known = self._ledger.fact("ending")
        return None if known is None else Ending(**known)

    def want(self, ending: Ending) -> Ending:
        """Decide the ending; the first one stands."""
        with self._ledger.transaction():
            if (decided := self.ending) is not None:
                return decided
            self._ledger.set_fact("ending", asdict(ending))
            return ending

    @property
    def judgements(self) -> list[dict[str, Any]]:
        """What the gates said of this evaluation."""
        known: list[dict[str, Any]] = self._ledger.fact("judgements", [])
        return known

    def set_judgements(self, judgements: Sequence[Mapping[str, Any]]) -> None:
        """The gates have judged."""
        self._ledger.set_fact("judgements", judgements)

    def decide_anew(self) -> None:
        """Another attempt begins: its ending counts, where an earlier one could not be written.

        Whether one was written nobody knows before the platform was asked.
        """
        with self._ledger.transaction():
            self._ledger.set_fact("ending", None)
            self._ledger.set_fact("unsure", True)  # noqa: FBT003 - the fact's value

    @property
    def unsure(self) -> bool:
        """Whether an attempt has begun and nobody has seen yet that its evaluation is open."""
        return bool(self._ledger.fact("unsure"))

    def set_sure(self) -> None:
        """The evaluation is open, or is opened next."""
        self._ledger.set_fact("unsure", None)

    @property
    def closed(self) -> str | None:
        """The status that the evaluation was closed with; None while it is open."""
        status: str | None = self._ledger.fact("closed")
        return status

    def set_closed(self, status: str) -> None:
        """It is closed on the platform."""
        self._ledger.set_fact("closed", status)


@dataclass(frozen=True)
class Peek:
    """What a dead process's ledger says, without taking its spool over."""

    plan: EvalPlan
    evaluation_id: str | None
    origin: str | None
    closed: str | None
    returned: bool
    unfinished: bool
    """Whether there are records that may still be sent."""
    changed_at: float


def is_bare(folder: Path) -> bool:
    """Whether a spool holds nothing: its owner died before it planned anything.

    Whoever calls this holds its lease.
    """
    if any(folder.glob("*.jsonl")) or any(folder.parent.glob("guest-*")):
        return False
    path = folder / "ledger.sqlite3"
    if not path.exists():
        return True
    with closing(Ledger(path)) as ledger:
        return EvaluationFacts(ledger).plan() is None


def peek(folder: Path) -> Peek | None:
    """Look into a spool; None where its owner is alive, or nothing was ever planned."""
    path = folder / "ledger.sqlite3"
    if not path.exists() or (lease := Lease.take(folder)) is None:
        return None
    try:
        ledger = Ledger(path)
        try:
            facts = EvaluationFacts(ledger)
            plan = facts.plan()
            if plan is None:
                return None
            known, segments = ledger.segments(), list(folder.glob("*.jsonl"))
            open_segments = [
                each for each in segments if int(each.name.partition(".")[0]) not in known
            ]
            written = [folder / "lease", *segments]
            evaluation = facts.evaluation
            return Peek(
                plan=plan,
                evaluation_id=None if evaluation is None else evaluation.id,
                origin=facts.origin,
                closed=facts.closed,
                returned=facts.returned,
                unfinished=bool(open_segments)
                or any(folder.parent.glob("guest-*"))
                or ledger.deliveries.unfinished(),
                # Not the ledger's own files: looking into it touches them.
                changed_at=max(
                    [ledger.deliveries.last_change(), *(each.stat().st_mtime for each in written)]
                ),
            )
        finally:
            ledger.close()
    finally:
        lease.release()
