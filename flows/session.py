"""One flow run's evaluation in this process: what is opened, sent and closed for it.

A session lives from the first attempt of its flow run to the state hook that closes the
evaluation; the attempts between share it. The platform's trouble stays in here: under
``on_error="warn"`` nothing of it reaches the eval.
"""

import contextlib
import shutil
from collections.abc import Mapping
from contextvars import copy_context
from dataclasses import asdict, replace
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun

from prefect_prime.credentials import Credentials
from prefect_prime.endings import Ending
from prefect_prime.errors import EnvironmentResolutionError, is_refusal
from prefect_prime.flows.options import EvalPlan
from prefect_prime.flows.result import EvalResult
from prefect_prime.flows.uploader import Uplink, Uploader
from prefect_prime.metrics import merge, overlay
from prefect_prime.records import KINDS
from prefect_prime.settings import Settings
from prefect_prime.spool import SINKS, Spool
from prefect_prime.tasks import (
    EvaluationSpec,
    OpenedEvaluation,
    close_evaluation,
    open_evaluation,
)

#: Seconds that an upload under way is given when everything else is over.
_LAST_REQUEST = 5.0

Log = Logger | LoggerAdapter[Any]


class Session:
    """An evaluation that this process owns. ``evaluation`` is None while it is offline."""

    def __init__(
        self,
        flow_run: FlowRun,
        plan: EvalPlan,
        settings: Settings,
        credentials: Credentials | None,
        log: Log,
    ) -> None:
        self.flow_run = flow_run
        self.plan = plan
        self.log = log
        self.evaluation: OpenedEvaluation | None = None
        self.uploader: Uploader | None = None
        self.result: EvalResult | None = None
        self.drain_timeout = settings.drain_timeout
        self._settings = settings
        self._context = copy_context()
        skipped = settings.traces_opt_out
        if credentials is not None and (reason := credentials.traces_skipped_reason) is not None:
            log.warning("%s", reason[0].upper() + reason[1:])
            skipped = True
        self.spool = Spool(
            spool_folder(settings, flow_run.id),
            sinks=settings.sinks,
            traces=not skipped,
            segment_bytes=settings.segment_bytes,
        )
        # One attempt: the tasks try again, and the uploader waits outages out.
        self._platform = None if credentials is None else credentials.get_client(attempts=1)
        self._traces = None if credentials is None or skipped else credentials.get_traces_client()

    @property
    def attempt(self) -> int:
        """Which attempt of the flow run this is, from 1."""
        return self.flow_run.run_count or 1

    # -- opening -------------------------------------------------------------------

    def begin(self, flow_run: FlowRun, plan: EvalPlan, log: Log) -> None:
        """Begin an attempt: open the evaluation, or go on with the one that is open."""
        self.flow_run, self.plan, self.log = flow_run, plan, log
        self._context = copy_context()
        if self._platform is None:
            return
        if self.evaluation is None:
            self._open()
        if self.evaluation is None:
            return
        if self.uploader is None:
            self.uploader = Uploader(
                self.spool,
                Uplink(self.evaluation.id, self._platform, self._traces, self._provenance()),
                log,
                workers=self._settings.uploads_in_flight,
                segment_age=self._settings.segment_age,
            )
            self.spool.on_sealed = self.uploader.wake
        self.uploader.start()

    def _open(self) -> None:
        known = self.spool.ledger.fact("evaluation")
        try:
            if known is not None:
                self.evaluation = OpenedEvaluation(**known)
            else:
                self.evaluation = self._run(open_evaluation, self._platform, self._spec())
                self.spool.ledger.set_fact("evaluation", vars(self.evaluation))
                self._tag(self.evaluation.id)
        except EnvironmentResolutionError:
            raise  # a wrong name will not mend itself, and no GPU hour is spent yet
        except Exception as error:
            if self.plan.on_error == "raise":
                raise
            self.log.warning(
                "The evaluation could not be opened (%s: %s). The eval runs on; its records stay"
                " in the spool %s.%s",
                type(error).__name__,
                error,
                self.spool.folder,
                " Check the API key and the team." if is_refusal(error) else "",
            )
        else:
            self.log.info("Evaluation %s: %s", self.evaluation.name, self.evaluation.url)

    def _spec(self) -> EvaluationSpec:
        """What the evaluation is opened with: the plan, and where it came from."""
        spec = self.plan.spec
        tags = [*spec.tags, f"prefect-flow-run:{self.flow_run.id}:1"]
        return replace(spec, tags=tags, metadata=self._metadata())

    def _tag(self, evaluation_id: str) -> None:
        with get_client(sync_client=True) as client:
            tags = set(client.read_flow_run(self.flow_run.id).tags)
            client.update_flow_run(
                self.flow_run.id, tags=tags | {"prime", f"prime-eval:{evaluation_id}"}
            )

    def _provenance(self) -> dict[str, str]:
        values = {
            "source": "prefect-prime",
            "run_type": "eval",
            "framework": self.plan.spec.framework,
            "model": self.plan.spec.model,
        }
        return {key: value for key, value in values.items() if value}

    def _run(self, task: Any, *arguments: Any) -> Any:
        """Call a task as a task run of this flow run, from wherever this is called."""
        return self._context.copy().run(task, *arguments)

    # -- sending ---------------------------------------------------------------------

    def drain(self, timeout: float | None) -> bool:
        """Send what is there, waiting at most ``timeout`` seconds; whether all is dealt with."""
        self.spool.seal()
        return self.uploader is not None and self.uploader.drain(timeout)

    # -- what is logged ----------------------------------------------------------------

    def add(self, record: object) -> None:
        """Take one record in. Raises as ``Spool.add`` does."""
        self.spool.add(record)

    @property
    def episodes(self) -> int:
        """Episodes taken in, each once."""
        return self.spool.count("episode")

    @property
    def records(self) -> int:
        """Records of every kind taken in, each once."""
        return sum(self.spool.count(kind) for kind in KINDS)

    @property
    def rejected(self) -> int:
        """Records that were set aside."""
        return self.spool.rejected

    def update_summary(self, values: Mapping[str, Any]) -> None:
        """Lay run-level metrics of the user's over the computed ones."""
        ledger = self.spool.ledger
        with ledger.transaction():
            ledger.set_fact("user_summary", overlay(ledger.fact("user_summary", {}), values))

    def metrics(self) -> dict[str, Any]:
        """The metrics as the dashboard reads them: computed, then what the user gave."""
        return merge(self.spool.summary(), self.spool.ledger.fact("user_summary", {}))

    @property
    def errors(self) -> list[str]:
        """What could not be uploaded for good, a line each."""
        return [] if self.uploader is None else list(self.uploader.errors)

    @property
    def place(self) -> str:
        """Where records are that are not on the platform."""
        return f"the spool {self.spool.folder}"

    def losses(self) -> dict[str, dict[str, int]]:
        """By sink: records that were not stored, and those that still wait."""
        tallies = {sink: self.spool.ledger.tally(sink) for sink in SINKS}
        return {
            sink: {
                "failed": tally.failed,
                "pending": tally.pending + self.spool.unsealed(sink),
            }
            for sink, tally in tallies.items()
        }

    # -- closing ----------------------------------------------------------------------

    def end(self, ending: Ending, *, sent: bool) -> None:
        """Close the evaluation and give everything back.

        What is COMPLETED is whole: while records still wait, the evaluation stays open.
        """
        self.spool.ledger.set_fact("ending", asdict(ending))
        status = None
        if self.evaluation is None:
            self.log.warning("The eval's records stay in %s.", self.place)
        elif ending.status == "COMPLETED" and not sent:
            self.log.warning(
                "Evaluation %s stays open: not everything has arrived, the rest is in %s.",
                self.evaluation.name,
                self.place,
            )
        else:
            status = self._close(ending, self.evaluation)
            if self.result is not None:
                self.result.status = status
        self._give_back(remove=status in {"COMPLETED", "PROCESSING"} and not self._losses_at_all())

    def _close(self, ending: Ending, evaluation: OpenedEvaluation) -> str:
        written = {"traces_episodes_written": self.spool.ledger.episodes_written()}
        status: str = self._run(
            close_evaluation,
            self._platform,
            evaluation.id,
            ending,
            self._metadata(),
            {**self.metrics(), "prime_runs": written},
        )
        self.log.info("Evaluation %s is %s: %s", evaluation.name, status, evaluation.url)
        return status

    def _metadata(self) -> dict[str, Any]:
        deployment = self.flow_run.deployment_id
        return {
            **self.plan.spec.metadata,
            "prefect": {
                "flow_run_id": str(self.flow_run.id),
                "flow_run_name": self.flow_run.name,
                "deployment_id": None if deployment is None else str(deployment),
                "attempt": self.attempt,
                "losses": self.losses(),
                "rejected": self.rejected,
            },
        }

    def _losses_at_all(self) -> bool:
        return bool(self.rejected) or any(
            count for losses in self.losses().values() for count in losses.values()
        )

    def _give_back(self, *, remove: bool) -> None:
        if self.uploader is not None and not self.uploader.stop(_LAST_REQUEST):
            return  # an upload is still under way; it needs all of this, and ends with us
        self.spool.close()
        if self._platform is not None:
            self._platform.close()
        if self._traces is not None:
            self._traces.close()
        if remove:
            shutil.rmtree(self.spool.folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.spool.folder.parent.rmdir()


def spool_folder(settings: Settings, flow_run_id: UUID) -> Path:
    """Where a flow run's records lie; the folder below it belongs to the run's owner."""
    return settings.spool_dir / str(flow_run_id) / "owner"
