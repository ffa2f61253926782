"""The sessions of this process, by flow run, and the hook that ends them."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.logging.loggers import flow_run_logger

from prefect_prime.flows.accounts import Accounts
from prefect_prime.flows.credentials import load_credentials
from prefect_prime.flows.endings import ending_for, was_signalled
from prefect_prime.flows.evaluation_facts import Peek, peek
from prefect_prime.flows.options import EvalOptions
from prefect_prime.flows.recording import Log
from prefect_prime.flows.server import read_flow_run
from prefect_prime.flows.session import Session
from prefect_prime.flows.sweep import finish
from prefect_prime.flows.untracked import Untracked
from prefect_prime.settings import load_settings
from prefect_prime.spool import store

#: Seconds that a hook may wait for uploads: after SIGTERM whoever sent it will not wait long
#: (a process worker kills after 30 s, Kubernetes too).
_DRAIN_AFTER_SIGNAL = 10.0
_DRAIN_IN_HOOK = 60.0
#: Seconds that a hook in another process waits for the owner's death to be complete.
_LEASE_WAIT = 5.0
_LEASE_POLL = 0.1

_sessions: dict[UUID, Session] = {}
_lock = threading.Lock()


def known(flow_run: FlowRun) -> bool:
    """Whether an earlier attempt of the flow run was made in this process."""
    with _lock:
        return flow_run.id in _sessions


def obtain(flow_run: FlowRun, make: Callable[[], Session]) -> Session:
    """The flow run's session: the one of its earlier attempt, else a new one."""
    with _lock:
        session = _sessions.get(flow_run.id)
    if session is None:
        session = make()  # may wait for whoever holds the spool
        with _lock:
            _sessions[flow_run.id] = session
    return session


def close_evaluation_of_run(flow: "Flow[..., Any]", flow_run: FlowRun, state: State[Any]) -> None:
    """State hook: end the evaluation as the flow run ended.

    Safe to be called again, and by a process that knows nothing of the run but its spool.
    """
    with _lock:
        session = _sessions.get(flow_run.id)
    if session is not None:
        if session.pid == os.getpid():  # a forked child owns nothing
            close(session, state)
        return
    log = flow_run_logger(flow_run, flow)
    try:
        _close_in_place_of(flow, flow_run.id, state, log)
    except Exception as error:  # noqa: BLE001 - a hook changes no state; reconcile does it again
        log.warning("The evaluation could not be closed here: %s: %s", type(error).__name__, error)


def _close_in_place_of(flow: "Flow[..., Any]", run_id: UUID, state: State[Any], log: Log) -> None:
    """End the evaluation of a dead process; nothing where its owner is alive or has closed it."""
    settings, ending = load_settings(), ending_for(state)
    folder = store.owner_folder(settings.spool_dir, run_id)
    if ending is None or settings.mode != "online" or not folder.exists():
        return
    seen = _peek_when_dead(folder)
    flow_run = read_flow_run(run_id)  # the object that a hook is given is stale
    if seen is None or seen.closed is not None or flow_run is None:
        return
    option = getattr(flow, "options", EvalOptions()).credentials
    # A block's name may be a template; the run kept what it came to.
    option = seen.plan.credentials if option is None or isinstance(option, str) else option
    credentials = Accounts([load_credentials(option, settings)]).for_origin(seen.origin)
    if credentials is None:
        log.warning(
            "Evaluation %s is left to reconcile: there are no credentials for %s here.",
            seen.plan.spec.name,
            seen.origin or "any platform",
        )
        return
    session = Session(folder, settings, credentials, log, left=True)
    finish(session, seen.plan, flow_run, ending, log, drain_timeout=_DRAIN_IN_HOOK)


def _peek_when_dead(folder: Path) -> Peek | None:
    """What a dead process left; its death may take a moment to be complete."""
    deadline = time.monotonic() + _LEASE_WAIT
    while (seen := peek(folder)) is None and time.monotonic() < deadline:
        time.sleep(_LEASE_POLL)
    return seen


def close(session: Session | Untracked, state: State[Any]) -> str | None:
    """End a session as its flow run ended; the evaluation's status, None where it stays open.

    Raises nothing, because a hook changes no state.
    """
    if isinstance(session, Untracked):
        return None
    ending = ending_for(state)
    if ending is None:
        return None
    with _lock:
        if _sessions.pop(session.flow_run.id, None) is None:
            return None  # closed before
    try:
        if ending.status == "COMPLETED":
            limit = 0.0
        else:
            limit = _DRAIN_AFTER_SIGNAL if was_signalled(state) else _DRAIN_IN_HOOK
        return session.end(ending, sent=session.drain(limit))
    except Exception as error:  # noqa: BLE001 - whatever it is, the flow run's state stands and its spool is kept
        session.log.warning(
            "The evaluation %s could not be closed as %s (%s: %s); what was not sent is in %s.",
            session.plan.spec.name,
            ending.status,
            type(error).__name__,
            error,
            session.place,
        )
        session.give_back()
        return None
