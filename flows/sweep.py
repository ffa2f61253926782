"""Finishing what dead processes left in this machine's spools.

A spool whose lease is held is alive and left alone; so are those of another Prefect server, and
those whose flow run is going to go on. The rest is sent, and its evaluation closed with the
ending that was decided, or that the flow run's state decides.
"""

import logging
import threading
import time
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, StateType
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW, temporary_settings
from prefect.states import Crashed

from prefect_prime.credentials import Credentials
from prefect_prime.endings import Ending
from prefect_prime.errors import SpoolError
from prefect_prime.flows.accounts import Accounts
from prefect_prime.flows.endings import ending_for
from prefect_prime.flows.evaluation_facts import Peek, is_bare, peek
from prefect_prime.flows.options import EvalPlan
from prefect_prime.flows.recording import Log
from prefect_prime.flows.server import read_flow_run
from prefect_prime.flows.session import Session
from prefect_prime.flows.shard_runs import cancel_shards
from prefect_prime.settings import Settings
from prefect_prime.spool import store
from prefect_prime.spool.lease import Lease

#: Seconds that a spool may take of an eval that starts.
_QUICK = 10.0
_SILENT = logging.getLogger("prefect_prime.sweep")
_SILENT.setLevel(logging.CRITICAL)
#: Seconds that the spool of a closed evaluation is kept after the last thing that happened in
#: it; what is pending or refused is kept for ever.
RETENTION = 7 * 86_400.0
#: States of a flow run that will go on by itself, or by a person's hand.
_GOING_ON = frozenset({StateType.SCHEDULED, StateType.PENDING, StateType.PAUSED})


@dataclass(frozen=True)
class Finding:
    """What became of one evaluation. ``status`` is None where it was left as it is."""

    name: str
    evaluation_id: str | None
    flow_run_id: str
    status: str | None
    note: str = ""


class Sweep:
    """One pass over the spools of this machine.

    A flow run that is not over counts as dead once its lease is free and nothing has happened
    for ``orphaned_after`` seconds. Each spool may take ``drain_timeout`` seconds to send.
    ``offline``: runs that never knew a platform are sent too.
    """

    def __init__(
        self,
        settings: Settings,
        accounts: Accounts,
        log: Log,
        *,
        orphaned_after: float,
        drain_timeout: float,
        offline: bool,
    ) -> None:
        self._settings = settings
        self._accounts = accounts
        self._log = log
        self._orphaned_after = orphaned_after
        self._drain_timeout = drain_timeout
        self._offline = offline

    def run(self) -> list[Finding]:
        """Finish every spool that nobody else will finish."""
        found = []
        store.sweep_out(self._settings.spool_dir)
        for run_id, folder in store.spools(self._settings.spool_dir):
            try:
                finding = self._finish(run_id, folder)
            except Exception as error:  # noqa: BLE001 - one spool's trouble is not another's
                finding = Finding("", None, run_id, None, f"{type(error).__name__}: {error}")
            if finding is not None:
                found.append(finding)
        return found

    def _finish(self, run_id: str, folder: Path) -> Finding | None:
        seen = peek(folder)
        if seen is None:
            _remove_bare(folder)
        if seen is None or (seen.origin is None and not self._offline):
            return None  # alive, or never planned
        flow_run = read_flow_run(UUID(run_id))
        ending = None if flow_run is None else self._ending(flow_run, seen)
        if flow_run is None or ending is None:
            return None  # of another Prefect server, or going on
        if (seen.closed is not None or seen.plan.evaluation_id is not None) and not seen.unfinished:
            if time.time() - seen.changed_at > RETENTION and (lease := Lease.take(folder)):
                store.remove(folder)
                lease.release()
            return None
        credentials = self._accounts.for_origin(seen.origin)
        if credentials is None:
            note = f"no credentials for {seen.origin or 'any platform'}"
            return Finding(seen.plan.spec.name, seen.evaluation_id, run_id, None, note)
        try:
            session = Session(folder, self._settings, credentials, self._log, left=True)
        except SpoolError:
            return None  # somebody else was quicker
        return finish(
            session, seen.plan, flow_run, ending, self._log, drain_timeout=self._drain_timeout
        )

    def _ending(self, flow_run: FlowRun, seen: Peek) -> Ending | None:
        """How the flow run ends its evaluation; None where it goes on, or may."""
        state = flow_run.state
        if state is None or state.type in _GOING_ON:
            return None
        if state.is_final():
            return ending_for(state)
        since = max(seen.changed_at, state.timestamp.timestamp())
        if time.time() - since < self._orphaned_after:
            return None
        if state.is_cancelling():
            return ending_for(state)
        if seen.returned:
            return Ending("COMPLETED")
        return ending_for(Crashed(message=f"its process is gone, and Prefect shows {state.name}"))


def _remove_bare(folder: Path) -> None:
    """Remove the spool of an owner that died before it planned anything, when that is long ago."""
    lease_file = folder / "lease"
    try:
        began = (lease_file if lease_file.exists() else folder).stat().st_mtime
    except FileNotFoundError:
        return  # somebody else was quicker
    if time.time() - began > RETENTION and (lease := Lease.take(folder)):
        try:
            if is_bare(folder):
                store.remove(folder)
        finally:
            lease.release()


def finish(
    session: Session,
    plan: EvalPlan,
    flow_run: FlowRun,
    ending: Ending,
    log: Log,
    *,
    drain_timeout: float,
) -> Finding:
    """Send what a dead process left, and end its evaluation as it decided, or else by ``ending``.

    The session is given back, whatever is raised.
    """
    try:
        session.spool.ledger.deliveries.retry_refused()
        if ending.status != "COMPLETED":
            cancel_shards(flow_run.id, log)
        # Outside of a flow run Prefect would warn of every line that a task logs.
        with temporary_settings({PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW: "ignore"}):
            session.go_on(flow_run, plan, log)
            sent = session.drain(drain_timeout)
            evaluation = session.evaluation
            lost = {sink: each for sink, each in session.losses().items() if any(each.values())}
            over = flow_run.state is not None and flow_run.state.is_final()
            status = session.end(ending, sent=sent, keep=not over)
    except BaseException:
        session.give_back()
        raise
    return Finding(
        plan.spec.name,
        None if evaluation is None else evaluation.id,
        str(flow_run.id),
        status,
        f"not stored: {lost}" if lost else "",
    )


def sweep_in_background(settings: Settings, credentials: Credentials | None, own: Path) -> None:
    """Finish what is over and left on this machine, while an eval runs; quick and silent."""
    if credentials is None or all(folder == own for _, folder in store.spools(settings.spool_dir)):
        return
    sweep = Sweep(
        settings,
        Accounts([credentials]),
        _SILENT,
        orphaned_after=float("inf"),
        drain_timeout=_QUICK,
        offline=False,
    )

    def outside_of_the_flow_run() -> None:
        FlowRunContext.__var__.set(None)  # type: ignore[arg-type]  # what `get` gives without one
        sweep.run()

    context = copy_context()
    threading.Thread(
        target=context.run, args=(outside_of_the_flow_run,), name="prime-sweep", daemon=True
    ).start()
