"""The tasks that open an evaluation and close it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from prefect_prime import creation
from prefect_prime.creation import Intent, create_once
from prefect_prime.endings import CLOSED, Ending
from prefect_prime.environments import EnvironmentRef, resolve
from prefect_prime.errors import APIError, is_ambiguous
from prefect_prime.platform_client import PlatformClient
from prefect_prime.tasks.retrying import REPEATABLE

#: What a platform answers that lets no producer set a status.
_TAKES_NO_STATUS = frozenset({400, 404, 405, 422})
_CONFLICT = 409


@dataclass(frozen=True)
class EvaluationSpec:
    """What an evaluation is opened with. ``metadata`` holds the launched config."""

    name: str
    environments: Sequence[EnvironmentRef]
    model: str | None = None
    framework: str | None = None
    description: str | None = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OpenedEvaluation:
    """An evaluation that is open on the platform."""

    id: str
    name: str
    url: str


@task(
    name="open evaluation",
    task_run_name="open evaluation {spec.name}",
    cache_policy=NO_CACHE,
    **REPEATABLE,
)
def open_evaluation(
    client: PlatformClient, spec: EvaluationSpec, tag: str, intent: Intent
) -> OpenedEvaluation:
    """Resolve the environments and create the evaluation that ``tag`` is for, once.

    Raises ``EnvironmentResolutionError`` for one that the hub does not know, else the
    errors of ``PlatformClient``.
    """
    created = create_once(
        client,
        tag,
        intent,
        {
            "name": spec.name,
            "environments": resolve(client, spec.environments),
            "model_name": spec.model,
            "dataset": next((ref.dataset for ref in spec.environments if ref.dataset), None),
            "framework": spec.framework,
            "description": spec.description,
            "tags": list(spec.tags),
            "metadata": dict(spec.metadata) or None,
        },
    )
    evaluation_id = str(created.get("evaluation_id") or created.get("id"))
    name = str(created.get("name") or spec.name)
    return OpenedEvaluation(evaluation_id, name, client.viewer_url(created))


@task(
    name="close evaluation",
    task_run_name="close evaluation {evaluation_id} {ending.status}",
    cache_policy=NO_CACHE,
    **REPEATABLE,
)
def close_evaluation(
    client: PlatformClient,
    evaluation_id: str,
    ending: Ending,
    metadata: Mapping[str, Any],
    metrics: Mapping[str, Any],
) -> str:
    """Close the evaluation once, however often this is called; returns its status then.

    What is closed already keeps its status; if it was taken for dead and has completed after
    all, its metadata says so (``prime_runs.completed_later``). ``metadata`` is laid over what
    the platform has, because a ``PUT`` replaces it as a whole; an empty one leaves it alone.
    Raises the errors of ``PlatformClient``.
    """
    current = client.get_evaluation(evaluation_id)
    merged = {**(current.get("metadata") or {}), **metadata}
    if (recorded := recorded_status(current)) in CLOSED:
        if metadata and ending.status == "COMPLETED" and recorded in {"FAILED", "CANCELLED"}:
            merged["prime_runs"] = {**(merged.get("prime_runs") or {}), "completed_later": True}
            client.update_evaluation(evaluation_id, metadata=merged, metrics=metrics)
        return recorded
    if ending.status == "COMPLETED":
        changes = {"metadata": merged} if metadata else {}
        client.update_evaluation(evaluation_id, metrics=metrics, **changes)
        _finalize(client, evaluation_id, metrics)
    else:
        # In two requests: the status guard refuses an update as a whole, and what is known
        # of the run should be there either way.
        closing = {"status": ending.status, "error_message": ending.message}
        merged["prime_runs"] = {**(merged.get("prime_runs") or {}), **closing}
        client.update_evaluation(evaluation_id, metadata=merged, metrics=metrics)
        try:
            client.update_evaluation(evaluation_id, **closing)
        except APIError as error:
            if error.status_code not in {*_TAKES_NO_STATUS, _CONFLICT}:
                raise
    status = str(client.get_evaluation(evaluation_id).get("status"))
    if status not in CLOSED:
        merged["prime_runs"] = {**(merged.get("prime_runs") or {}), "status_refused": True}
        client.update_evaluation(evaluation_id, metadata=merged)
        get_run_logger().warning(
            "This platform takes no status from a producer: evaluation %s shows %s, and its"
            " metadata (prime_runs) says that it is %s.",
            evaluation_id,
            status,
            ending.status,
        )
        return ending.status
    return status


def _finalize(client: PlatformClient, evaluation_id: str, metrics: Mapping[str, Any]) -> None:
    """Finalize once: it starts a job there, so one whose answer was lost is looked up first."""
    try:
        client.finalize_evaluation(evaluation_id, metrics=metrics)
    except APIError as error:
        failure = error
    else:
        return
    if failure.status_code == _CONFLICT:
        return  # somebody else closed it meanwhile
    if is_ambiguous(failure):
        creation.settle(time.time())
        if client.get_evaluation(evaluation_id).get("status") in CLOSED:
            return
    raise failure


def recorded_status(evaluation: Mapping[str, Any]) -> str:
    """An evaluation's status; where the platform took none from us, that of our record."""
    record = (evaluation.get("metadata") or {}).get("prime_runs") or {}
    if record.get("status_refused"):
        return str(record.get("status"))
    return str(evaluation.get("status"))
