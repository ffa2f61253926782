"""The artifacts of one flow run on the Prefect server: each is made once, then updated.

Which ones there are is kept by whoever gives ``known``: a hook in another process, or
``reconcile``, updates what the eval's own process made.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from uuid import UUID

from httpx import HTTPStatusError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import SyncClientContext
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

#: Seconds that one request may take. Nothing waits for these but the last ones.
_REQUEST = 5.0
_NOT_FOUND = 404


def impatient() -> AbstractContextManager[object]:
    """Settings under which a Prefect server that is away is found out at once.

    Prefect's client repeats a request for a minute; what is told here is old by then.
    """
    return temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0})


@contextmanager
def connected(*, shared: bool) -> Iterator[SyncPrefectClient]:
    """A client: with ``shared`` the flow run's own if there is one here, which costs nothing;
    else one of our own, which is quick to give up.
    """
    context = SyncClientContext.get() if shared else None
    if context is not None:
        yield context.client
        return
    options: dict[str, Any] = {"timeout": _REQUEST}
    if (PREFECT_API_URL.value() or "").startswith("http://"):
        # Reading the certificates of every authority takes longer than all requests.
        options["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with get_client(httpx_settings=options, sync_client=True) as client:
        yield client


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
        self._shown: dict[str, tuple[Any, str]] = {}

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
        """Show ``data`` under a name, unless it is shown. Raises what the client raises."""
        if self._shown.get(name) == (data, description):
            return
        if (known := self._known.get(name)) is not None:
            change = ArtifactUpdate(data=data, description=description)
            try:
                # Not by `update_artifact`: it emits an event each time, and every few seconds
                # for hours those would be all that the event feed holds.
                client.request(
                    "PATCH",
                    "/artifacts/{id}",
                    path_params={"id": known},
                    json=change.model_dump(mode="json", exclude_unset=True),
                )
            except HTTPStatusError as error:
                if error.response.status_code != _NOT_FOUND:
                    raise
                del self._known[name]  # a person deleted it
            else:
                self._shown[name] = data, description
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
        self._known[name], self._shown[name] = str(made.id), (data, description)
        self._remember(dict(self._known))
