"""Evaluations of this Prefect server that no spool of this machine knows of any more.

Their flow run is over, and they still show RUNNING: its machine is gone, or its spool. One whose
records may still lie in another store is given time to be finished from there; then it is closed
as it is, and says so.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from prefect_prime.credentials import Credentials
from prefect_prime.endings import CLOSED
from prefect_prime.flows import events
from prefect_prime.flows.endings import ending_for
from prefect_prime.flows.server import read_flow_run, server_id
from prefect_prime.flows.sweep import Finding
from prefect_prime.platform_client import PlatformClient
from prefect_prime.settings import Settings
from prefect_prime.spool import store
from prefect_prime.tasks import close_evaluation, recorded_status

#: The note on an evaluation that is left to another machine for now.
WAITS = "its records may still come from another machine's spool"
_PAGE = 100
#: Evaluations looked at per platform, newest first.
_MOST = 2_000


def close_abandoned(
    credentials: Credentials, settings: Settings, *, undelivered_after: float
) -> list[Finding]:
    """Close what nobody else will, of one platform.

    ``undelivered_after`` is how many seconds after its flow run's end an evaluation is closed
    whose records may still lie in another store.
    """
    ours, here = server_id(), store.store_id(settings.spool_dir)
    found = []
    with credentials.get_client() as client:
        for evaluation in _open_evaluations(client):
            origin = (evaluation.get("metadata") or {}).get("prefect") or {}
            run_id = origin.get("flow_run_id")
            if origin.get("server_id") != ours or not run_id:
                continue  # another server's, or attached: whoever opened it closes it
            foreign = origin.get("store_id") != here
            if not foreign and store.owner_folder(settings.spool_dir, run_id).exists():
                continue  # the sweep's
            finding = _close(client, evaluation, run_id, undelivered_after if foreign else 0.0)
            if finding is not None:
                found.append(finding)
    return found


def _open_evaluations(client: PlatformClient) -> Iterator[Mapping[str, Any]]:
    for skip in range(0, _MOST, _PAGE):
        page = client.list_evaluations(skip=skip, limit=_PAGE)
        listed = page.get("evaluations") or []
        yield from (each for each in listed if recorded_status(each) not in CLOSED)
        if len(listed) < _PAGE:
            return


def _close(
    client: PlatformClient, evaluation: Mapping[str, Any], run_id: str, wait: float
) -> Finding | None:
    flow_run = read_flow_run(UUID(run_id))
    state = None if flow_run is None else flow_run.state
    ending = None if state is None or not state.is_final() else ending_for(state)
    if flow_run is None or state is None or ending is None:
        return None
    evaluation_id = str(evaluation.get("evaluation_id") or evaluation.get("id"))
    name = str(evaluation.get("name"))
    if time.time() - state.timestamp.timestamp() < wait:
        return Finding(name, evaluation_id, run_id, None, WAITS)
    metadata = {"prefect": {**evaluation["metadata"]["prefect"], "undelivered": True}}
    metrics = evaluation.get("metrics") or {}
    status = close_evaluation(client, evaluation_id, ending, metadata, metrics)
    payload = {"status": status, "reason": ending.message, "metrics": metrics, "undelivered": True}
    events.emit(events.what_for(ending, status), evaluation_id, name, run_id, payload)
    return Finding(name, evaluation_id, run_id, status, "closed without its spool")
