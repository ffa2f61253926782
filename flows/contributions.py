"""What guests with spools of their own logged, as the owner of their evaluation learns of it.

A deployed shard, an attached eval, a process on another machine: each uploads by itself, and
only its own ledger knows what it logged. It leaves that with the owner's flow run, over what it
left there before, and whoever closes the evaluation counts it in.

It lies there as an artifact of the type ``result``, without a key: both of Prefect's pages leave
that type out of a flow run's artifacts, and name no artifact that has no key.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterType,
)
from prefect.client.schemas.objects import Artifact
from prefect.client.schemas.sorting import ArtifactSort

from prefect_prime.metrics import SummaryAccumulator
from prefect_prime.spool import Sink, Tally

_TYPE = "result"
#: Tells these from other artifacts of the type; the version of what they hold.
_KIND = "prime-contribution/1"
_PAGE = 200


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What one spool holds of an evaluation that another process owns.

    ``counted`` is the state of a ``SummaryAccumulator``, ``given`` what ``update_summary`` was
    told; ``written`` episodes have a trace that Prime Traces acknowledged.
    """

    evaluation_id: str
    spool: str
    counted: Mapping[str, Any]
    given: Mapping[str, Any]
    tallies: Mapping[Sink, Tally]
    written: int
    rejected: int
    dropped: int

    @property
    def metrics(self) -> SummaryAccumulator:
        """What the metrics are made of."""
        return SummaryAccumulator.from_state(self.counted)

    @property
    def episodes(self) -> int:
        """Episodes taken in."""
        return self.metrics.episodes


def owner_of(evaluation: Mapping[str, Any], server: str) -> UUID | None:
    """The flow run that an evaluation belongs to; None for one that is not of this server."""
    origin = (evaluation.get("metadata") or {}).get("prefect") or {}
    owner = origin.get("flow_run_id")
    return UUID(owner) if owner and origin.get("server_id") == server else None


def contribute(owner: UUID, contribution: Contribution) -> None:
    """Leave it with the owner's flow run; the latest of a spool counts."""
    artifact = ArtifactCreate(
        type=_TYPE, data={"kind": _KIND, **asdict(contribution)}, flow_run_id=owner
    )
    with get_client(sync_client=True) as client:
        client.create_artifact(artifact)


def contributions(owner: UUID, evaluation_id: str) -> list[Contribution]:
    """What was left with a flow run for one evaluation, the latest of each spool."""
    wanted = ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=[owner]), type=ArtifactFilterType(any_=[_TYPE])
    )
    found: list[Artifact] = []
    with get_client(sync_client=True) as client:
        while True:
            page = client.read_artifacts(
                artifact_filter=wanted,
                sort=ArtifactSort.CREATED_DESC,
                limit=_PAGE,
                offset=len(found),
            )
            found += page
            if len(page) < _PAGE:
                break
    latest: dict[str, Contribution] = {}
    for artifact in reversed(found):
        if isinstance(artifact.data, dict) and artifact.data.get("kind") == _KIND:
            contribution = _parse(artifact.data)
            if contribution.evaluation_id == evaluation_id:
                latest[contribution.spool] = contribution
    return list(latest.values())


def _parse(data: Mapping[str, Any]) -> Contribution:
    values = {key: value for key, value in data.items() if key != "kind"}
    tallies = {sink: Tally(**tally) for sink, tally in values["tallies"].items()}
    return Contribution(**{**values, "tallies": tallies})
