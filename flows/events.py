"""What automations can react to: ``prime.evaluation.<what>``.

==================== =========================================================
event                 when
==================== =========================================================
``opened``            an evaluation was created (not: gone on with, or attached to)
``completed``         it is closed, and valid
``failed``            its flow run failed
``crashed``           its flow run's process died, or was told to
``cancelled``         its flow run was cancelled
``regressed``         it is closed, and valid, and a gate did not hold
==================== =========================================================

The resource is the evaluation, ``prime.evaluation.<id>``, labelled with its environment and its
model; the flow run is related to it. The payload holds metrics and losses.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from prefect.events import emit_event

from prefect_prime.endings import Ending

What = Literal["opened", "completed", "failed", "crashed", "cancelled", "regressed"]


def emit(
    what: What,
    evaluation_id: str,
    name: str,
    flow_run_id: object,
    payload: Mapping[str, Any],
    *,
    environment: str | None = None,
    model: str | None = None,
) -> None:
    """Emit one event of an evaluation. Raises nothing: nobody depends on who listens."""
    labels = {"prime.environment": environment, "prime.model": model}
    # The evaluation stands, whether anybody hears of it or not.
    with suppress(Exception):
        emit_event(
            event=f"prime.evaluation.{what}",
            resource={
                "prefect.resource.id": f"prime.evaluation.{evaluation_id}",
                "prefect.resource.name": name,
                **{label: value for label, value in labels.items() if value},
            },
            related=[
                {
                    "prefect.resource.id": f"prefect.flow-run.{flow_run_id}",
                    "prefect.resource.role": "flow-run",
                }
            ],
            payload=dict(payload),
        )


def what_for(ending: Ending, status: str) -> What:
    """The event of an evaluation that was closed with this status."""
    if status == "CANCELLED":
        return "cancelled"
    if status in {"COMPLETED", "PROCESSING"}:
        return "completed"
    return "crashed" if ending.crashed else "failed"
