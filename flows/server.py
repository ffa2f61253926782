"""What is kept on the Prefect server: its id, and a flow run's tags; and where it shows them."""

import functools
import uuid
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import VariableCreate
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import PREFECT_API_URL
from prefect.utilities.urls import url_for

from prefect_prime.flows.naming import was_made_up

#: The Variable that holds the server's id, made by whoever asks first.
_SERVER_ID = "prefect_prime_server_id"
_EVALUATION = "prime-eval:"


def server_id() -> str:
    """The id of this Prefect server: which flow runs an evaluation's owner may ask about."""
    return _server_id(PREFECT_API_URL.value())


@functools.cache
def _server_id(_url: str | None) -> str:
    with get_client(sync_client=True) as client:
        variable = client.read_variable_by_name(_SERVER_ID)
        if variable is None:
            made = VariableCreate(name=_SERVER_ID, value=uuid.uuid4().hex)
            try:
                variable = client.create_variable(made)
            except ObjectAlreadyExists:
                variable = client.read_variable_by_name(_SERVER_ID)
    return str(variable.value if variable else "")


def tag_flow_run(flow_run: FlowRun, evaluation_id: str) -> None:
    """Let every process that knows the flow run find its evaluation, and every person: by the
    name that the flow run was given here, if Prefect made up the one that it has.
    """
    with get_client(sync_client=True) as client:
        current = client.read_flow_run(flow_run.id)
        tags = {tag for tag in current.tags if not tag.startswith(_EVALUATION)}
        tags |= {"prime", f"{_EVALUATION}{evaluation_id}"}
        renamed = current.name != flow_run.name and was_made_up(current.name)
        changes: dict[str, Any] = {"name": flow_run.name} if renamed else {}
        client.update_flow_run(flow_run.id, tags=tags, **changes)


def rename_flow_run(flow_run: FlowRun, client: SyncPrefectClient) -> None:
    """Give a flow run the name that it was given here, where no evaluation was opened for it."""
    if was_made_up(client.read_flow_run(flow_run.id).name):
        client.update_flow_run(flow_run.id, name=flow_run.name)


def take_no_more_retries(flow_run_id: UUID) -> None:
    """Have the next failure of a flow run be its last, whatever its flow's ``retries`` say."""
    with get_client(sync_client=True) as client:
        policy = client.read_flow_run(flow_run_id).empirical_policy
        client.update_flow_run(
            flow_run_id, empirical_policy=policy.model_copy(update={"retries": 0})
        )


def evaluation_of(flow_run: FlowRun) -> str | None:
    """The id of the evaluation that a flow run is tagged with."""
    tagged = (tag for tag in flow_run.tags if tag.startswith(_EVALUATION))
    return next((tag.removeprefix(_EVALUATION) for tag in tagged), None)


def read_flow_run(flow_run_id: UUID) -> FlowRun | None:
    """The flow run as it is now; None if this server does not know it."""
    with get_client(sync_client=True) as client:
        try:
            return client.read_flow_run(flow_run_id)
        except ObjectNotFound:
            return None


def whereabouts(flow_run: FlowRun, store_id: str) -> dict[str, Any]:
    """Where an evaluation comes from: its server, its store of records, its flow run."""
    return {
        "server_id": server_id(),
        "store_id": store_id,
        "flow_run_id": str(flow_run.id),
        "flow_run_name": flow_run.name,
        "flow_run_url": flow_run_url(flow_run.id),
        "deployment_id": None if flow_run.deployment_id is None else str(flow_run.deployment_id),
        "attempt": flow_run.run_count or 1,
        "started_at": _iso(flow_run.start_time),
        "ended_at": _iso(flow_run.end_time),
    }


def flow_run_url(flow_run_id: UUID) -> str | None:
    """A flow run's page in the Prefect UI; None where no UI is known.

    It goes to the platform, so of the UI's address only what leads there: it may follow from an
    API address that holds a password.
    """
    url = url_for("flow-run", flow_run_id)
    if not url:
        return None
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
