"""The artifacts of one flow run on the Prefect server: each is made once, then updated.

Which ones there are is kept by whoever gives ``known``: a hook in another process, or
``reconcile``, updates what the eval's own process made.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

#: Seconds that one request may take. Nothing waits for these but the last ones.
_REQUEST = 5.0


def impatient() -> AbstractContextManager[object]:
    """Settings under which a Prefect server that is away is found out at once.

    Prefect's client repeats a request for a minute; what is told here is old by then.
    """
    return temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0})


def connect() -> SyncPrefectClient:
    """A client of our own: the flow run's is in use by the flow run, and patient."""
    return get_client(httpx_settings={"timeout": _REQUEST}, sync_client=True)


class Artifacts:
    """``known`` holds the ids by name; ``remember`` is called with all of them when there is a
    new one.
    """

    def __init__(
        self,
        flow_run_id: UUID,
        known: Mapping[str, str],
        remember: Callable[[dict[str, str]], object],
    ) -> None:
        self._flow_run_id = flow_run_id
        self._known = dict(known)
        self._remember = remember

    def put(
        self,
        client: SyncPrefectClient,
        name: str,
        kind: str,
        data: Any,
        description: str,
        *,
        key: str | None = None,
    ) -> None:
        """Show ``data`` under a name. Raises what the client raises."""
        if (known := self._known.get(name)) is not None:
            change = ArtifactUpdate(data=data, description=description)
            try:
                client.update_artifact(UUID(known), change)
            except ObjectNotFound:  # a person deleted it
                del self._known[name]
            else:
                return
        made = client.create_artifact(
            ArtifactCreate(
                key=key or name,
                type=kind,
                data=data,
                description=description,
                flow_run_id=self._flow_run_id,
            )
        )
        self._known[name] = str(made.id)
        self._remember(dict(self._known))
