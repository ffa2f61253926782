"""When a remote effect is tried again, for every task of this package.

Two more tries within a few seconds: what lasts longer is waited out elsewhere, because
Prefect's retry sleep cannot be interrupted. A request that the service may have processed
already is tried again too: each task here may repeat its effect, because that is addressed by
its content, or read back before it is done again.
"""

from typing import Any, TypedDict

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger

from prefect_prime.errors import is_transient


class RetryOptions(TypedDict):
    """The options of ``prefect.task`` that decide about retries."""

    retries: int
    retry_delay_seconds: list[float]
    retry_condition_fn: Any


def _error_of(state: State[Any]) -> BaseException | None:
    try:
        result = state.result(raise_on_failure=False)
    except Exception as error:  # noqa: BLE001 - a result that cannot be read is an error to judge too
        return error
    return result if isinstance(result, BaseException) else None


def _transient(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    error = _error_of(state)
    again = error is not None and is_transient(error)
    if not again:
        # Prefect logs nothing of a failure that a condition declined.
        get_run_logger().warning("Not tried again: %s: %s", type(error).__name__, error)
    return again


REPEATABLE: RetryOptions = {
    "retries": 2,
    "retry_delay_seconds": [0.5, 2.0],
    "retry_condition_fn": _transient,
}
