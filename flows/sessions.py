"""The sessions of this process, by flow run, and the hook that ends them."""

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State

from prefect_prime.flows.endings import ending_for, was_signalled
from prefect_prime.flows.session import Session
from prefect_prime.flows.untracked import Untracked

#: Seconds that a hook may wait for uploads: after SIGTERM whoever sent it will not wait long
#: (a process worker kills after 30 s, Kubernetes too).
_DRAIN_AFTER_SIGNAL = 10.0
_DRAIN_IN_HOOK = 60.0

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
            session = _sessions[flow_run.id] = make()
        return session


def close_evaluation_of_run(flow: "Flow[..., Any]", flow_run: FlowRun, state: State[Any]) -> None:  # noqa: ARG001 - a state hook's signature, called by position and by keyword
    """State hook: end the evaluation as the flow run ended. Safe to be called again."""
    with _lock:
        session = _sessions.get(flow_run.id)
    if session is not None:
        close(session, state)


def close(session: Session | Untracked, state: State[Any]) -> None:
    """End a session as its flow run ended; raises nothing, because a hook changes no state."""
    if isinstance(session, Untracked):
        return
    ending = ending_for(state)
    if ending is None:
        return
    with _lock:
        if _sessions.pop(session.flow_run.id, None) is None:
            return  # closed before
    try:
        sent = session.drain(
            0.0
            if ending.status == "COMPLETED"
            else _DRAIN_AFTER_SIGNAL
            if was_signalled(state)
            else _DRAIN_IN_HOOK
        )
        session.end(ending, sent=sent)
    except Exception as error:  # noqa: BLE001 - whatever it is, the flow run's state stands and its spool is kept
        session.log.warning(
            "The evaluation %s could not be closed as %s (%s: %s); what was not sent is in %s.",
            session.plan.spec.name,
            ending.status,
            type(error).__name__,
            error,
            session.place,
        )
