"""One attempt of a tracked flow run, from the first line of its body to the last.

``begin`` opens or continues the evaluation before the user's code runs; ``finish`` drains
the uploads after it and makes the flow run's final state. Closing is left to the state
hooks, which know how Prefect saw the run end; only a returned ``Cancelled`` state is closed
here, because no hook runs for it.
"""

import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.logging.loggers import get_logger
from prefect.states import Completed, Failed

from prefect_prime.errors import RecordRejectedError
from prefect_prime.flows import hosted, sessions
from prefect_prime.flows.credentials import load_credentials, warn_if_unsaved
from prefect_prime.flows.endings import REGRESSED
from prefect_prime.flows.forked import end_fork
from prefect_prime.flows.naming import name_flow_run
from prefect_prime.flows.options import EvalPlan
from prefect_prime.flows.recording import losses
from prefect_prime.flows.result import EvalResult
from prefect_prime.flows.run import EvalRun, entered, surrounding_run
from prefect_prime.flows.server import take_no_more_retries
from prefect_prime.flows.session import Session
from prefect_prime.flows.sweep import sweep_in_background
from prefect_prime.flows.untracked import Untracked
from prefect_prime.gates import Judgement
from prefect_prime.settings import config_file_problem, load_settings
from prefect_prime.spool import store

#: Seconds that whoever still finishes an earlier attempt is waited for: a hook, reconcile.
_PATIENCE = 60.0
#: Seconds of a flow's own time-out that are kept for making its final state.
_RESERVE = 2.0


class Attempt:
    """What surrounds the user's function; ``run`` is its ``EvalRun``."""

    def __init__(
        self, session: Session | Untracked, deadline: float | None = None, *, plain: bool
    ) -> None:
        #: Return a plain value, not a state; what its message would say goes to the log.
        self._plain = plain
        self.run = EvalRun(session)
        self._session = session
        self._deadline = deadline
        self._entered = entered(self.run)

    def __enter__(self) -> Self:
        self._entered.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._entered.__exit__(None, None, None)
        self.run.end()

    @property
    def returned(self) -> bool:
        """Whether an earlier attempt's entrypoint has returned: only the rest is to be done."""
        return isinstance(self._session, Session) and self._session.facts.returned

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Around the user's function. A fork that leaves it, in whatever way, ends here."""
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            if not self.run.is_here:
                end_fork(error)

    def log(self, yielded: Any) -> None:
        """Log what a generator yielded: one episode, or a list of them."""
        self.run.log_episodes(yielded if isinstance(yielded, list | tuple) else [yielded])

    def finish(self, value: Any) -> Any:
        """Drain, judge, and turn the entrypoint's value into the flow's return value.

        Raises ``RecordRejectedError`` where nothing but rejected records was logged, and
        ``UploadFailedError`` under ``on_error="raise"``.
        """
        self.run.end()
        if isinstance(value, State) and value.is_cancelled():
            self._session.drain(self._drain_time())
            sessions.close(self._session, value)
            return value
        if self._session.rejected and not self._session.records:
            raise RecordRejectedError(
                f"all {self._session.rejected} records of this eval were rejected; the log above"
                " says why"
            )
        # Prefect decides about states and futures later, and a retry is to run them again.
        if isinstance(self._session, Session) and not _decides_the_state(value):
            self._session.note_returned()
        drained = self._session.drain(self._drain_time())
        self.run.raise_failures()
        if _decides_the_state(value):
            return value
        result = self._result(drained=drained)
        if isinstance(self._session, Session):
            self._session.result = result
        value = result if value is None else value
        judgements = self._session.judge(sent=drained)
        message = self._message(result, judgements)
        if any(each.verdict == "regressed" for each in judgements):
            return self._regressed(message)
        if self._plain:
            self._session.log.info("%s", message)
            return value
        return Completed(message=message, data=value)

    def _drain_time(self) -> float | None:
        if not isinstance(self._session, Session):
            return 0.0
        limit = self._session.drain_timeout
        if self._deadline is None:
            return limit
        return max(0.0, min(limit, self._deadline - time.monotonic() - _RESERVE))

    def _result(self, *, drained: bool) -> EvalResult:
        session = self._session
        if isinstance(session, Untracked):
            status = "UNTRACKED"
        elif session.evaluation is None:
            status = "OFFLINE"
        elif session.plan.evaluation_id and not session.plan.hosted:
            status = "RUNNING"
        else:
            status = "COMPLETED" if drained else "RUNNING"
        return EvalResult(
            evaluation_id=self.run.id,
            url=self.run.url,
            status=status,
            episodes=self.run.episodes_logged,
            summary=self.run.summary,
            losses=losses(session.tallies()),
            rejected=self.run.rejected_records,
            dropped=self.run.dropped_records,
        )

    def _regressed(self, message: str) -> State[Any]:
        """The evaluation is valid and the flow run has failed, for good: a retry would find
        that the entrypoint has returned, and the same numbers.
        """
        if (flow_run_id := self.run.flow_run_id) is not None:
            take_no_more_retries(flow_run_id)
        return Failed(name=REGRESSED, message=message)

    def _message(self, result: EvalResult, judgements: Sequence[Judgement]) -> str:
        said = [each.reason for each in judgements if each.verdict != "passed"]
        parts = [*said, f"{result.episodes} episode{'' if result.episodes == 1 else 's'}"]
        reward = result.summary.get("avg_reward")
        if result.episodes and isinstance(reward, int | float):
            parts.append(f"avg_reward {reward:.4g}")
        for sink, lost in result.losses.items():
            if lost["failed"]:
                parts.append(f"{lost['failed']} not stored by {sink}")
            if lost["pending"]:
                parts.append(f"{lost['pending']} still to be sent to {sink}")
        if result.rejected:
            parts.append(f"{result.rejected} rejected")
        if result.dropped:
            parts.append(f"{result.dropped} dropped")
        if any(lost["pending"] for lost in result.losses.values()):
            parts.append(f"they wait in {self._session.place}")
        return ", ".join(parts)


def _decides_the_state(value: Any) -> bool:
    """Whether Prefect makes the flow run's state from this value: states and futures."""
    members = value if isinstance(value, list | set | tuple) else [value]
    return any(isinstance(member, State | PrefectFuture) for member in members)


def begin(fn: Any) -> Attempt:
    """Open or continue the evaluation of the flow run that is executing.

    Called outside one (a test that calls ``flow.fn``), the run is untracked. Raises
    ``ConfigurationError`` before anything is created.
    """
    context = FlowRunContext.get()
    flow: Any = context and context.flow
    if context is None or context.flow_run is None or getattr(flow, "fn", None) is not fn:
        bare = EvalPlan.untracked(fn.__name__)
        return Attempt(Untracked(bare, get_logger("prefect_prime"), 1), plain=True)
    started = time.monotonic()
    log = get_run_logger()
    plan = flow.plan(_with_defaults(fn, context.parameters or {}))
    if (outer := surrounding_run()) is not None and outer.flow_run_id is not None:
        plan = plan.inside(outer.flow_run_id)
    settings = load_settings()
    deadline = None if flow.timeout_seconds is None else started + flow.timeout_seconds
    credentials = load_credentials(plan.credentials, settings)
    if settings.mode == "disabled":
        log.info("PRIME_RUNS_MODE=disabled: this eval is not tracked.")
    elif credentials is None and settings.mode == "online":
        problem = config_file_problem()
        log.warning(
            "This eval is not tracked: there is no API key%s. Set PRIME_API_KEY, save a Prime"
            " Credentials block and name it in credentials=, or set PRIME_RUNS_MODE=offline to"
            " keep the records for later.",
            f" ({problem})" if problem else "",
        )
    else:
        # Prefect 3.9.1: once an attempt has raised in this process, a later one that returns a
        # state raises that exception again from the call (FlowRunEngine.result).
        retried = sessions.known(context.flow_run)
        folder = store.owner_folder(settings.spool_dir, context.flow_run.id)
        usable = None if settings.mode == "offline" else credentials
        session = sessions.obtain(
            context.flow_run,
            lambda: Session(folder, settings, usable, log, patience=_PATIENCE),
        )
        if not retried:
            if usable is not None:
                warn_if_unsaved(plan.credentials, usable, settings, context.flow_run, log)
            plan = hosted.claim(plan)
            sweep_in_background(settings, usable, folder)
        if flow.flow_run_name is None:
            name_flow_run(context.flow_run, plan)
        session.begin(context.flow_run, plan, log)
        session.watch()
        return Attempt(session, deadline, plain=retried)
    attempt = context.flow_run.run_count or 1
    return Attempt(Untracked(plan, log, attempt), deadline, plain=attempt > 1)


def _with_defaults(fn: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a run by name, in the function's own order."""
    declared = inspect.signature(fn).parameters.values()
    defaults = {each.name: each.default for each in declared}
    values = {**defaults, **given}
    return {name: value for name, value in values.items() if value is not inspect.Parameter.empty}
