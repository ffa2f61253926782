"""Shards as deployed flow runs: started once, watched, run again, cancelled.

The parent polls Prefect. A shard whose process was killed is Crashed as soon as its worker sees
that. One whose worker died as well would be Running for ever: on this machine, or with a spool
shared with it, the lease on the shard's spool tells that; elsewhere only Prefect's own heartbeats
can, and an automation on them is the user's to have (docs/sharding.md).

A shard is run again as the same flow run, so that its own spool, and ``run.remaining``, go on.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling, Crashed, Scheduled

from prefect_prime.errors import ConfigurationError
from prefect_prime.flows.recording import Log
from prefect_prime.settings import load_settings
from prefect_prime.spool import store
from prefect_prime.spool.lease import Lease

_TAG = "prime-shard-of:"
#: Seconds that nobody holds the spool of a shard that Prefect shows as running until it counts
#: as dead: its process holds it from the first line of its body to its end.
_DEAD_AFTER = 15.0
#: Flow runs that one request reads.
_PAGE = 200
_GOING = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED]


def start(
    deployment: str | UUID,
    parent: UUID,
    evaluation_id: str,
    parameters: Mapping[str, Any],
    shards: int,
) -> list[FlowRun]:
    """A flow run for each shard; those that an earlier attempt of the parent has started are
    found again. Another evaluation of the same parent gets others: it has none of the records.

    Raises ``ConfigurationError`` where there is no such deployment.
    """
    started = []
    for shard in range(shards):
        own = {"evaluation_id": evaluation_id, "shard": shard, "shards": shards}
        try:
            flow_run: Any = run_deployment(
                deployment,
                parameters={**parameters, **own},
                timeout=0,
                flow_run_name=f"shard {shard + 1} of {shards}",
                tags=[f"{_TAG}{parent}"],
                idempotency_key=f"prime-shard:{parent}:{evaluation_id}:{shard}/{shards}",
                as_subflow=True,
                _sync=True,  # type: ignore[call-arg]  # of Prefect's dispatch; a thread of an async flow is no coroutine
            )
        except ObjectNotFound:
            raise ConfigurationError(
                f"there is no deployment {str(deployment)!r} to run shards of: its name is"
                " 'FLOW/DEPLOYMENT', as `prefect deployment ls` shows it"
            ) from None
        started.append(flow_run)
    return started


def cancel_shards(parent: UUID, log: Log) -> None:
    """Cancel every shard of a flow run that is not over. Raises nothing: whoever calls this is
    about to end with something more important.
    """
    wanted = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[f"{_TAG}{parent}"]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_GOING)),
    )
    try:
        with get_client(sync_client=True) as client:
            while going := client.read_flow_runs(flow_run_filter=wanted, limit=_PAGE):
                log.info("Cancelling %d shard(s).", len(going))
                for flow_run in going:
                    client.set_flow_run_state(flow_run.id, _cancelling())
                if len(going) < _PAGE:
                    break
    except Exception as error:  # noqa: BLE001 - see above
        log.warning("Not every shard could be cancelled: %s: %s", type(error).__name__, error)


def _cancelling() -> State[Any]:
    return Cancelling(message="the eval that this is a shard of has ended")


@dataclass
class _Shard:
    """One shard, as its parent knows it. ``tries``: how often it may still be run again."""

    number: int
    flow_run_id: UUID
    tries: int
    #: It ended, or is ending, in an earlier attempt of the parent: it is run again for free.
    from_before: bool = False
    #: Since when, on the monotonic clock, nobody has held its spool.
    free_since: float | None = None


class ShardRuns:
    """The deployed shards of one eval, until each is over. ``retries`` is for each of them."""

    def __init__(self, started: Sequence[FlowRun], log: Log, *, retries: int) -> None:
        self._log = log
        self._retries = retries
        self._spool_dir = load_settings().spool_dir
        self._of = len(started)
        self._going = {
            flow_run.id: _Shard(number, flow_run.id, retries, from_before=_is_ending(flow_run))
            for number, flow_run in enumerate(started, start=1)
        }
        #: By number, from 1: why a shard failed for good.
        self.failed: dict[int, str] = {}
        self._unreachable = False

    def look(self) -> bool:
        """See how the shards are, and run again what is to be; whether any is going on."""
        try:
            found = {flow_run.id: flow_run for flow_run in self._read()}
            for shard in list(self._going.values()):
                self._judge(shard, found.get(shard.flow_run_id))
        except httpx.HTTPError as error:
            if not self._unreachable:
                self._log.warning("Prefect does not say how the shards are: %s", error)
            self._unreachable = True
        else:
            self._unreachable = False
        return bool(self._going)

    def _read(self) -> Iterator[FlowRun]:
        wanted = list(self._going)
        with get_client(sync_client=True) as client:
            for begin in range(0, len(wanted), _PAGE):
                ids = FlowRunFilterId(any_=wanted[begin : begin + _PAGE])
                yield from client.read_flow_runs(flow_run_filter=FlowRunFilter(id=ids), limit=_PAGE)

    def _judge(self, shard: _Shard, flow_run: FlowRun | None) -> None:
        state = None if flow_run is None else flow_run.state
        if flow_run is None or state is None:
            self._fail(shard, "its flow run was deleted")
        elif state.is_completed():
            del self._going[shard.flow_run_id]
        elif not state.is_final():
            self._look_for_life(shard, state)
        elif shard.from_before:
            self._run_again(shard, "it ended before the eval was tried again")
        elif state.is_cancelled():
            self._fail(shard, "it was cancelled")
        elif shard.tries:
            shard.tries -= 1
            done = self._retries - shard.tries
            self._run_again(shard, f"{_said(state)} (retry {done} of {self._retries})")
        else:
            self._fail(shard, _said(state))

    def _run_again(self, shard: _Shard, why: str) -> None:
        self._log.warning("Shard %d of %d is run again: %s", shard.number, self._of, why)
        shard.from_before = False
        self._set(shard, Scheduled(message="run again by the eval that it is a shard of"))

    def _fail(self, shard: _Shard, why: str) -> None:
        self._log.error("Shard %d of %d failed: %s", shard.number, self._of, why)
        self.failed[shard.number] = why
        del self._going[shard.flow_run_id]

    def _look_for_life(self, shard: _Shard, state: State[Any]) -> None:
        """Have a shard that is surely dead be Crashed."""
        folder = store.owner_folder(self._spool_dir, shard.flow_run_id)
        lease = None
        if state.is_running() and folder.exists() and (lease := Lease.take(folder)) is not None:
            lease.release()
        if lease is None:
            shard.free_since = None
            return
        shard.free_since = shard.free_since or time.monotonic()
        if time.monotonic() - shard.free_since >= _DEAD_AFTER:
            shard.free_since = None
            self._set(shard, Crashed(message="its process is gone: nobody holds its spool"))

    def _set(self, shard: _Shard, state: State[Any]) -> None:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(shard.flow_run_id, state, force=True)


def _is_ending(flow_run: FlowRun) -> bool:
    state = flow_run.state
    return state is not None and (state.is_final() or state.is_cancelling())


def _said(state: State[Any]) -> str:
    return f"{state.name}: {state.message}" if state.message else state.name or state.type.value
