"""The tasks that open an evaluation and close it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from prefect_prime.endings import CLOSED, Ending
from prefect_prime.environments import EnvironmentRef, resolve
from prefect_prime.errors import APIError, mark_ambiguous
from prefect_prime.platform_client import PlatformClient
from prefect_prime.tasks.retrying import ONCE, REPEATABLE

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
    **ONCE,
)
def open_evaluation(client: PlatformClient, spec: EvaluationSpec) -> OpenedEvaluation:
    """Resolve the environments and create the evaluation.

    Raises ``EnvironmentResolutionError`` for one that the hub does not know, else the
    errors of ``PlatformClient``. Creating is not repeated where it may have happened.
    """
    try:
        environments = resolve(client, spec.environments)
    except APIError as error:
        raise mark_ambiguous(error, ambiguous=False) from None  # resolving may be repeated
    created = client.create_evaluation(
        name=spec.name,
        environments=environments,
        model_name=spec.model,
        dataset=next((ref.dataset for ref in spec.environments if ref.dataset), None),
        framework=spec.framework,
        description=spec.description,
        tags=list(spec.tags),
        metadata=dict(spec.metadata) or None,
    )
    evaluation_id = created.get("evaluation_id") or created.get("id")
    if not evaluation_id:
        raise APIError(f"the platform created {spec.name!r} but gave no evaluation_id")
    return OpenedEvaluation(
        str(evaluation_id),
        str(created.get("name") or spec.name),
        client.viewer_url(created),
    )


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

    What is closed already stays as it is. ``metadata`` is laid over what the platform has,
    because a ``PUT`` replaces it as a whole. Raises the errors of ``PlatformClient``.
    """
    current = client.get_evaluation(evaluation_id)
    if current.get("status") in CLOSED:
        return str(current["status"])
    merged = {**(current.get("metadata") or {}), **metadata}
    if ending.status == "COMPLETED":
        client.update_evaluation(evaluation_id, metadata=merged, metrics=metrics)
        try:
            client.finalize_evaluation(evaluation_id, metrics=metrics)
        except APIError as error:
            if error.status_code != _CONFLICT:  # somebody else closed it meanwhile
                raise
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
        get_run_logger().warning(
            "This platform takes no status from a producer: evaluation %s shows %s, and its"
            " metadata (prime_runs) says that it is %s.",
            evaluation_id,
            status,
            ending.status,
        )
    return status
