"""How each end of a flow run ends its evaluation: the whole of it in one table.

========================== ================= ============================================
Prefect state              evaluation        message
========================== ================= ============================================
Completed                  COMPLETED         none
Failed named Regressed     COMPLETED         none: the evaluation is valid
Failed, TimedOut           FAILED            the state's
Crashed                    FAILED            ``crashed:`` and the state's
Cancelling, Cancelled      CANCELLED         the state's
Running, AwaitingRetry,    stays open
Paused, Suspended, ...
========================== ================= ============================================
"""

from prefect.client.schemas.objects import State, StateType

from prefect_prime.endings import ClosedStatus, Ending

_STATUS: dict[StateType, ClosedStatus] = {
    StateType.COMPLETED: "COMPLETED",
    StateType.FAILED: "FAILED",
    StateType.CRASHED: "FAILED",
    StateType.CANCELLING: "CANCELLED",
    StateType.CANCELLED: "CANCELLED",
}
#: The name of a failed state whose evaluation is valid all the same.
REGRESSED = "Regressed"
#: What Prefect writes into the state of a run that a signal ended; a coroutine sees its
#: event loop cancelled instead.
_SIGNALS = (
    "by a termination signal",
    "by an interrupt signal",
    "cancelled by the runtime environment",
)


def ending_for(state: State) -> Ending | None:
    """How a flow run in this state ends its evaluation; None where it goes on."""
    status = _STATUS.get(state.type)
    if status is None:
        return None
    if status == "COMPLETED" or state.name == REGRESSED:
        return Ending("COMPLETED")
    message = state.message or f"the flow run is {state.name}"
    return Ending(status, f"crashed: {message}" if state.type is StateType.CRASHED else message)


def was_signalled(state: State) -> bool:
    """Whether the run was told to go: whoever did so kills it, or presses again, if it dawdles."""
    if _STATUS.get(state.type) == "CANCELLED":
        return True
    message = state.message or ""
    return state.type is StateType.CRASHED and any(signal in message for signal in _SIGNALS)
