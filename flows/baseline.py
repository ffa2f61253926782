"""The evaluation that a run's gates compare it with."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prefect_prime.errors import APIError
from prefect_prime.flows.options import EvalPlan
from prefect_prime.gates import Baseline
from prefect_prime.platform_client import PlatformClient

_PAGE = 100
#: Evaluations that are looked at, newest first.
_MOST = 2_000
#: Rows of one evaluation that are read; a larger one is compared by its summary alone.
_MOST_ROWS = 5_000
_NOT_FOUND = 404


def what_is_compared(plan: EvalPlan) -> dict[str, Any]:
    """What two evaluations must have in common, as it is kept in their metadata."""
    return {
        "flow": plan.flow_name,
        "environments": sorted(str(ref) for ref in plan.spec.environments),
        "model": plan.spec.model,
    }


def find_baseline(client: PlatformClient, plan: EvalPlan, flow_run_id: str) -> Baseline | None:
    """The evaluation that the plan names, else the last COMPLETED one of the same flow,
    environments and model, but not of this flow run. None where there is none.

    Raises the errors of ``PlatformClient``.
    """
    found: Mapping[str, Any] | None
    if plan.baseline is not None:
        found = _named(client, plan.baseline)
    else:
        found = next(_comparable(client, what_is_compared(plan), flow_run_id), None)
    if found is None:
        return None
    identity = str(found.get("evaluation_id") or found.get("id"))
    url, metrics = client.viewer_url(found), found.get("metrics") or {}
    return Baseline(identity, url, metrics, read_rows(client, identity))


def read_rows(
    client: PlatformClient, evaluation_id: str, *, most: int | None = _MOST_ROWS
) -> Sequence[Mapping[str, Any]] | None:
    """The sample rows of an evaluation; None where there are too many to read for this."""
    rows: list[Mapping[str, Any]] = []
    page = 0
    while True:
        page += 1
        answer = client.list_samples(evaluation_id, page=page, limit=_PAGE)
        if most is not None and int(answer.get("total") or 0) > most:
            return None
        rows += answer.get("samples") or ()
        if not answer.get("has_more"):
            return rows


def _named(client: PlatformClient, evaluation_id: str) -> Mapping[str, Any] | None:
    try:
        return client.get_evaluation(evaluation_id)
    except APIError as error:
        if error.status_code == _NOT_FOUND:
            return None
        raise


def _comparable(
    client: PlatformClient, wanted: Mapping[str, Any], flow_run_id: str
) -> Iterator[Mapping[str, Any]]:
    for skip in range(0, _MOST, _PAGE):
        listed = client.list_evaluations(skip=skip, limit=_PAGE).get("evaluations") or []
        for evaluation in listed:
            origin = (evaluation.get("metadata") or {}).get("prefect") or {}
            if (
                evaluation.get("status") == "COMPLETED"
                and origin.get("compared_by") == wanted
                and origin.get("flow_run_id") != flow_run_id
            ):
                yield evaluation
        if len(listed) < _PAGE:
            return
