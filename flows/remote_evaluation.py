"""The platform's side of a flow run's evaluation: found or opened, and closed at its end.

The ledger is the first truth of which evaluation that is. Where an attempt begins without the
spool of the one before (another machine, a spool that was over and removed), the flow run's
tag tells of it: a spool that is not here cannot be gone on from, so the next generation begins.
"""

from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import replace
from typing import Any

from prefect.client.schemas.objects import FlowRun

from prefect_prime.endings import CLOSED, Ending
from prefect_prime.errors import APIError
from prefect_prime.flows.evaluation_facts import EvaluationFacts
from prefect_prime.flows.options import EvalPlan
from prefect_prime.flows.server import evaluation_of, tag_flow_run
from prefect_prime.platform_client import PlatformClient
from prefect_prime.tasks import (
    EvaluationSpec,
    OpenedEvaluation,
    close_evaluation,
    open_evaluation,
    recorded_status,
)

_NOT_FOUND = 404


class RemoteEvaluation:
    """One flow run's evaluation on one platform. ``context`` is that of the flow run, which the
    task runs belong to. Raises the errors of ``PlatformClient``.
    """

    def __init__(
        self,
        platform: PlatformClient,
        flow_run: FlowRun,
        plan: EvalPlan,
        facts: EvaluationFacts,
        context: Context,
    ) -> None:
        self._platform = platform
        self._flow_run = flow_run
        self._plan = plan
        self._facts = facts
        self._context = context

    def open(
        self, metadata: Mapping[str, Any], *, whole: bool, send_again: Callable[[], None]
    ) -> None:
        """Find the evaluation, or open the next one; the facts say which it is then.

        ``whole``: everything that was logged has arrived. ``send_again`` is called where it is
        to go into another evaluation.
        """
        if self._plan.evaluation_id is not None:
            self._facts.opened(self._attached(self._plan.evaluation_id))
        elif self._facts.evaluation is None:
            self._succeed_one_elsewhere()
        elif self._facts.unsure and self._is_over(whole=whole):
            with self._facts.transaction():
                self._facts.next_generation()
                send_again()
        self._facts.set_sure()
        if self._facts.evaluation is None:
            spec = self._spec(metadata)
            opened = self._run(open_evaluation, self._platform, spec, self._tag, self._facts)
            self._facts.opened(opened)
            tag_flow_run(self._flow_run, opened.id)

    def close(
        self,
        evaluation: OpenedEvaluation,
        ending: Ending,
        metadata: Mapping[str, Any],
        metrics: Mapping[str, Any],
    ) -> str:
        """Close the evaluation, once; its status then."""
        written = {} if self._plan.hosted else metadata
        status: str = self._run(
            close_evaluation, self._platform, evaluation.id, ending, written, metrics
        )
        self._facts.set_closed(status)
        return status

    def _run(self, task: Any, *arguments: Any) -> Any:
        """Call a task as a task run of the flow run, from wherever this is called."""
        return self._context.copy().run(task, *arguments)

    def _attached(self, evaluation_id: str) -> OpenedEvaluation:
        url = self._platform.viewer_url({"id": evaluation_id})
        return OpenedEvaluation(evaluation_id, self._plan.spec.name, url)

    def _is_over(self, *, whole: bool) -> bool:
        """Whether the evaluation of the ledger is closed, by our own doing or another's.

        One that is whole, and whose entrypoint is not called again, is the one to stay with.
        """
        status = self._facts.closed
        if status is None and (evaluation := self._facts.evaluation) is not None:
            status = recorded_status(self._platform.get_evaluation(evaluation.id))
        stays = whole and self._facts.returned and status in {"COMPLETED", "PROCESSING"}
        return status in CLOSED and not stays

    # -- an evaluation whose spool is not here --------------------------------------

    def _succeed_one_elsewhere(self) -> None:
        """Go on from the evaluation that an attempt with another spool opened, if there is one."""
        if self._facts.at is not None or self._facts.predecessor is not None:
            return  # this very spool is about to open the next
        found = self._elsewhere()
        if found is None:
            return
        earlier, generation = found
        self._facts.succeed(str(earlier["evaluation_id"]), generation)
        if recorded_status(earlier) in CLOSED:
            return
        ending = Ending(
            "FAILED",
            f"attempt {self._flow_run.run_count} of the flow run went on without this"
            f" evaluation's spool, in generation {generation + 1}",
        )
        identity = str(earlier["evaluation_id"])
        metrics = earlier.get("metrics") or {}
        self._run(close_evaluation, self._platform, identity, ending, {}, metrics)

    def _elsewhere(self) -> tuple[Mapping[str, Any], int] | None:
        """The evaluation that the flow run is tagged with, if it is on this platform and ours."""
        evaluation_id = evaluation_of(self._flow_run)
        if evaluation_id is None:
            return None
        try:
            evaluation = self._platform.get_evaluation(evaluation_id)
        except APIError as error:
            if error.status_code == _NOT_FOUND:  # another account's
                return None
            raise
        generations = [
            int(tag.removeprefix(self._tag_prefix))
            for tag in evaluation.get("tags") or ()
            if tag.startswith(self._tag_prefix) and tag.removeprefix(self._tag_prefix).isdigit()
        ]
        if not generations:
            return None
        return {**evaluation, "evaluation_id": evaluation_id}, generations[0]

    # -- what it is opened with --------------------------------------------------------

    @property
    def _tag_prefix(self) -> str:
        return f"prefect-flow-run:{self._flow_run.id}:"

    @property
    def _tag(self) -> str:
        """What tells this flow run's evaluations apart, on the platform."""
        return f"{self._tag_prefix}{self._facts.generation}"

    def _spec(self, metadata: Mapping[str, Any]) -> EvaluationSpec:
        """The plan, and where it came from."""
        spec = self._plan.spec
        tags = [*spec.tags, self._tag]
        if self._facts.predecessor is not None:
            tags.append(f"retry-of:{self._facts.predecessor}")
        return replace(spec, tags=tags, metadata=metadata)
