"""One flow run's evaluation, owned by this process: opened, fed and closed.

A session lives from the first attempt of its flow run to the state hook that closes the
evaluation; attempts in between share it. Another process goes on from the ledger: the next
attempt, a hook that runs elsewhere, ``reconcile``. The lease on the spool says who owns it.

The platform's trouble stays in here: under ``on_error="warn"`` nothing of it reaches the eval.
"""

import functools
import os
import threading
import time
from collections import Counter
from contextvars import copy_context
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import FlowRun

from prefect_prime.credentials import Credentials
from prefect_prime.endings import Ending
from prefect_prime.errors import APIError, EnvironmentResolutionError, is_refusal
from prefect_prime.flows import quiet
from prefect_prime.flows.baseline import find_baseline, read_rows, what_is_compared
from prefect_prime.flows.closing import Closing
from prefect_prime.flows.contributions import (
    Contribution,
    contribute,
    contributions,
    owner_of,
)
from prefect_prime.flows.courier import Uplink
from prefect_prime.flows.options import EvalPlan
from prefect_prime.flows.recording import Log, Recording
from prefect_prime.flows.remote_evaluation import RemoteEvaluation
from prefect_prime.flows.result import EvalResult
from prefect_prime.flows.server import server_id, whereabouts
from prefect_prime.flows.uploader import Uploader
from prefect_prime.flows.watch import Watch, close_event, emit_for
from prefect_prime.gates import Judgement, judge
from prefect_prime.settings import Settings
from prefect_prime.spool import Spool, store
from prefect_prime.spool.intake import GuestIntake
from prefect_prime.tasks import OpenedEvaluation

#: Seconds between two looks at guests that are still logging.
_GUEST_POLL = 0.1
#: Seconds that an upload under way is given when everything else is over.
_LAST_REQUEST = 5.0


@dataclass(frozen=True)
class Ticket:
    """What a guest needs to know of an evaluation; no credential, but maybe a block's name."""

    run_folder: Path
    store_id: str
    flow_run: FlowRun
    plan: EvalPlan
    evaluation: OpenedEvaluation | None


class Session(Recording):
    """An evaluation that this process owns. ``evaluation`` is None while it is offline.

    Raises ``SpoolError`` where the folder cannot be used, or another process holds its lease.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        credentials: Credentials | None,
        log: Log,
        *,
        patience: float = 0.0,
        left: bool = False,
    ) -> None:
        self.pid = os.getpid()
        self.uploader: Uploader | None = None
        self.result: EvalResult | None = None
        self.drain_timeout = settings.drain_timeout
        self.flow_run: FlowRun
        self.plan: EvalPlan
        self._settings = settings
        self._credentials = credentials
        self._remote: RemoteEvaluation | None = None
        self._watch: Watch | None = None
        self._contributed: Contribution | None = None
        skipped = settings.traces_opt_out
        if credentials is not None and (reason := credentials.traces_skipped_reason) is not None:
            log.warning("%s", reason[0].upper() + reason[1:])
            skipped = True
        spool = Spool(
            folder,
            sinks=settings.sinks,
            traces=not skipped,
            segment_bytes=settings.segment_bytes,
            fsync=settings.spool_fsync,
            patience=patience,
            left=left,
        )
        super().__init__(spool, log)
        self._guests = GuestIntake(self.spool, self.update_summary, log)
        # One attempt: the tasks try again, and the uploader waits outages out.
        self._platform = None if credentials is None else credentials.get_client(attempts=1)
        self._traces = None if credentials is None or skipped else credentials.get_traces_client()

    @property
    def attempt(self) -> int:
        """Which attempt of the flow run this is, from 1."""
        return self.flow_run.run_count or 1

    def ticket(self) -> Ticket:
        """What makes another process a guest."""
        return Ticket(
            self.spool.folder.parent,
            store.store_id(self._settings.spool_dir),
            self.flow_run,
            self.plan.without_secret(),
            self.evaluation,
        )

    # -- opening -------------------------------------------------------------------

    def begin(self, flow_run: FlowRun, plan: EvalPlan, log: Log) -> None:
        """Begin an attempt: open the evaluation, or go on with the one that is open."""
        origin = None if self._credentials is None else self._credentials.origin
        earlier = self.facts.plan()
        if earlier is not None and earlier.hosted:  # claimed by an earlier attempt
            plan = plan.attached_to(earlier.evaluation_id or "", hosted=True)
        self.facts.save_plan(plan, origin=origin)
        self.facts.decide_anew()
        self.spool.ledger.deliveries.retry_refused()
        self.go_on(flow_run, plan, log)

    def go_on(self, flow_run: FlowRun, plan: EvalPlan, log: Log) -> None:
        """Take the evaluation over for a flow run, and send what there is to send."""
        self.flow_run, self.plan, self.log = flow_run, plan, log
        if self._platform is None:
            return
        quiet.keep_quiet()
        self._remote = RemoteEvaluation(self._platform, flow_run, plan, self.facts, copy_context())
        try:
            self._open()
        except EnvironmentResolutionError:
            raise  # a wrong name will not mend itself, and no GPU hour is spent yet
        except Exception as error:
            if plan.on_error == "raise":
                raise
            self._stay_offline(error)
        if self.evaluation is not None:
            self._start_sending(self.evaluation)

    def _open(self) -> None:
        if self.uploader is not None or self._remote is None:
            self.facts.set_sure()
            return  # opened by this process, at an earlier attempt
        before = self.facts.evaluation
        self._remote.open(
            self._metadata(), whole=not self.has_losses(), send_again=self.spool.send_again
        )
        if (evaluation := self.evaluation) is not None:
            self.log.info("Evaluation %s: %s", evaluation.name, evaluation.url)
            if evaluation != before and not self.plan.evaluation_id:
                emit_for(self, "opened", {"url": evaluation.url, "attempt": self.attempt})

    def _stay_offline(self, error: Exception) -> None:
        self.log.warning(
            "The evaluation could not be opened (%s: %s). The eval runs on; its records stay in"
            " %s, for reconcile to send.%s",
            type(error).__name__,
            error,
            self.place,
            " Check the API key and the team." if is_refusal(error) else "",
        )

    def _start_sending(self, evaluation: OpenedEvaluation) -> None:
        if self.uploader is None and self._platform is not None:
            self.uploader = Uploader(
                self.spool,
                Uplink(evaluation.id, self._platform, self._traces, self._provenance()),
                self.log,
                workers=self._settings.uploads_in_flight,
                segment_age=self._settings.segment_age,
                collect=self._guests.collect,
            )
            self.spool.on_sealed = self.uploader.wake
        if self.uploader is not None:
            self.uploader.start()

    def watch(self) -> None:
        """Show people from now on how the eval gets on."""
        try:
            self._watch = self._watch or Watch(self)
            self._watch.start()
        except Exception as error:  # noqa: BLE001 - no thread to be had, say: nothing worth an eval
            self.log.warning("The eval is not shown: %s: %s", type(error).__name__, error)

    def _provenance(self) -> dict[str, str]:
        values = {
            "source": "prefect-prime",
            "run_type": "eval",
            "framework": self.plan.spec.framework,
            "model": self.plan.spec.model,
        }
        return {key: value for key, value in values.items() if value}

    # -- sending and closing -------------------------------------------------------------

    def flush(self, timeout: float | None) -> bool:
        """Send what is there, waiting at most ``timeout`` seconds; whether all is dealt with."""
        self._guests.collect()
        sealed = self.spool.seal()
        sent = self.uploader is not None and self.uploader.drain(timeout) and sealed
        if self.is_guest:
            self._contribute()
        return sent

    def drain(self, timeout: float | None) -> bool:
        """``flush``, and wait until the guests of this machine have gone as well."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (guests := self._guests.collect()) and (
            deadline is None or time.monotonic() < deadline
        ):
            time.sleep(_GUEST_POLL)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        sent = self.flush(left) and not guests
        if not self.is_guest and (timeout != 0.0 or self.elsewhere is None):
            self._count_in_guests()
        if self._watch is not None:
            self._watch.settle()
        return sent

    @property
    def is_guest(self) -> bool:
        """Whether the evaluation is somebody else's, who closes it."""
        return self.plan.evaluation_id is not None and not self.plan.hosted

    def _contribute(self) -> None:
        """Tell whoever owns the evaluation what was logged here, where that is of this server."""
        if self._platform is None or self.evaluation is None or not self.records:
            return
        contribution = Contribution(
            evaluation_id=self.evaluation.id,
            spool=self.spool.token,
            counted=self.spool.summary_state(),
            given=self.given(),
            tallies=self.own_tallies(),
            written=self.spool.ledger.deliveries.episodes_written(),
            rejected=self.rejected,
            dropped=self.dropped,
        )
        if contribution == self._contributed:
            return
        try:
            evaluation = self._platform.get_evaluation(self.evaluation.id)
            if (owner := owner_of(evaluation, server_id())) is not None:
                contribute(owner, contribution)
            self._contributed = contribution
        except Exception as error:  # noqa: BLE001 - it costs the summary these records, which are sent all the same
            self.log.warning(
                "The summary of evaluation %s may not cover what was logged here: %s: %s",
                self.evaluation.name,
                type(error).__name__,
                error,
            )

    def _count_in_guests(self) -> None:
        """Learn what guests with spools of their own have logged."""
        if self.evaluation is None or self._remote is None:
            return
        try:
            self.elsewhere = contributions(self.flow_run.id, self.evaluation.id)
        except Exception as error:  # noqa: BLE001 - as above
            self.log.warning(
                "The summary may not cover what other machines logged: %s: %s",
                type(error).__name__,
                error,
            )

    def logged_anywhere(self) -> Counter[Any]:
        """How many rollouts of each example were logged by now, by guests elsewhere too.

        Those are counted on the platform. Raises ``APIError``.
        """
        self.drain(_LAST_REQUEST)
        logged = self.rollouts()
        if self.elsewhere and self._platform is not None and self.evaluation is not None:
            rows = read_rows(self._platform, self.evaluation.id, most=None) or ()
            logged |= Counter(row["example_id"] for row in rows)
        return logged

    def judge(self, *, sent: bool) -> list[Judgement]:
        """Have the plan's gates judge the evaluation; ``sent``: all of its rows are there."""
        if not self.plan.gates:
            return []
        baseline = rows = None
        if self._platform is not None and self.evaluation is not None:
            try:
                baseline = find_baseline(self._platform, self.plan, str(self.flow_run.id))
                rows = read_rows(self._platform, self.evaluation.id) if sent and baseline else None
            except APIError as error:
                self.log.warning("There is nothing to compare this evaluation with: %s", error)
        judgements = judge(self.plan.gates, self.metrics(), rows, baseline)
        self.facts.set_judgements([each.as_metadata() for each in judgements])
        return judgements

    def end(self, ending: Ending, *, sent: bool, keep: bool = False) -> str | None:
        """Close the evaluation as decided first, and give everything back; its status.

        What is COMPLETED is whole: while records still wait, the evaluation stays open. None
        where it is not closed, or not ours to close. ``keep``: the flow run may be run again,
        and is to find in the spool that nothing is left to do.
        """
        ending = self.facts.want(ending)
        status, note = None, None
        if self.evaluation is None:
            note = f"There is no evaluation; what was logged stays in {self.place}."
            if self.records:
                self.log.warning("The eval's records stay in %s.", self.place)
        elif self.is_guest or (self.plan.hosted and ending.status != "COMPLETED"):
            note = "The evaluation is left to whoever opened it."
            self.log.info("Evaluation %s is left to whoever opened it.", self.evaluation.name)
        elif ending.status == "COMPLETED" and not sent:
            note = (
                "The evaluation stays open: not everything has arrived. The rest is in"
                f" {self.place}, for reconcile to send."
            )
            self.log.warning(
                "Evaluation %s stays open: not everything has arrived, the rest is in %s.",
                self.evaluation.name,
                self.place,
            )
        else:
            try:
                status = self._close(ending, self.evaluation)
            except Exception as error:
                what = f"The evaluation could not be closed: {type(error).__name__}: {error}"
                self._show_end(ending, None, what)
                raise
        if self.result is not None and status is not None:
            self.result.status = status
        self._show_end(ending, status, note)
        # A guest that is run again, a shard say, is to find what it has logged.
        keep = keep or (self.is_guest and ending.status != "COMPLETED")
        self.give_back(remove=self._is_over(status) and not keep)
        return status

    def _show_end(self, ending: Ending, status: str | None, note: str | None) -> None:
        """Tell people and automations what came out."""
        try:
            closing = Closing.of(self, ending, status, note)
            close_event(self, ending, closing)
            self._watch = self._watch or Watch(self)
            self._watch.finish(closing)
        except Exception as error:  # noqa: BLE001 - the evaluation's end stands, shown or not
            self.log.warning("The end is not shown: %s: %s", type(error).__name__, error)

    def _close(self, ending: Ending, evaluation: OpenedEvaluation) -> str | None:
        if self._remote is None:
            return None
        written = self.spool.ledger.deliveries.episodes_written()
        written += sum(each.written for each in self._guests_elsewhere)
        metrics = {**self.metrics(), "prime_runs": {"traces_episodes_written": written}}
        status = self._remote.close(evaluation, ending, self._metadata(), metrics)
        self.log.info("Evaluation %s is %s: %s", evaluation.name, status, evaluation.url)
        return status

    def _metadata(self) -> dict[str, Any]:
        known = {
            "records": {sink: asdict(tally) for sink, tally in self.tallies().items()},
            "losses": self.losses(),
            "rejected": self.rejected + sum(each.rejected for each in self._guests_elsewhere),
            "dropped": self.dropped + sum(each.dropped for each in self._guests_elsewhere),
            "guests_elsewhere": len(self._guests_elsewhere),
            "torn": self.spool.torn,
            "gates": self.facts.judgements,
            "compared_by": what_is_compared(self.plan),
        }
        where = whereabouts(self.flow_run, store.store_id(self._settings.spool_dir))
        return {**self.plan.spec.metadata, "prefect": {**where, **known}}

    def _is_over(self, status: str | None) -> bool:
        """Whether nothing of the spool is of use to anybody any more."""
        if status is None and self.records and not self.plan.evaluation_id:
            return False
        if status not in {None, "COMPLETED", "PROCESSING"}:
            return False  # a retry takes it over into the next evaluation
        return not self.rejected and not self.has_losses()

    def give_back(self, *, remove: bool = False, patience: float | None = _LAST_REQUEST) -> None:
        """Stop sending and release the spool. ``remove``: nothing of it is needed any more."""
        if self.last is not None:
            return
        if self._watch is not None:
            self._watch.finish(None)
        if self.uploader is not None and not self.uploader.stop(patience):
            # An upload that is still under way needs all of this.
            later = functools.partial(self.give_back, patience=None)
            threading.Thread(target=later, name="prime-last-upload", daemon=True).start()
            return
        self._guests.close()
        self.close(remove=remove)
        if self._platform is not None:
            self._platform.close()
        if self._traces is not None:
            self._traces.close()
