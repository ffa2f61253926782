"""What tracking adds to a flow run: at its beginning and end, per task run, on a retry.

Each function runs in a process of its own, against the stub and a Prefect server.
"""

import os
import time
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import UUID

from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.flow_engine import run_flow
from prefect.runtime import flow_run as this_flow_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Scheduled

from benchmarks.measuring import peak_memory
from benchmarks.workloads import SMALL, records
from prefect_prime.flows import current_run, eval_flow

#: Joining the thread of the heartbeat takes Prefect up to a second at the end of a flow run.
_NO_HEARTBEAT: dict[Any, Any] = {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
#: Seconds after which no further task run is expected to be recorded.
_SETTLED = 3.0


@task
def nothing() -> None:
    """A task that does nothing."""


@flow
def plain(tasks: int = 1) -> None:
    """A flow that nobody tracks."""
    for _ in range(tasks):
        nothing()


@eval_flow(environments=["bench"], model="bench")
def tracked(number: int = 1) -> None:
    """An eval of a few episodes."""
    current_run().log_episodes(records(SMALL, number))


def idle() -> dict[str, float]:
    """MB at most of a process that ran a flow with one task."""
    plain()
    return {"MB": peak_memory()}


def overhead(number: int) -> dict[str, list[float]]:
    """Seconds of so many flow runs, after a first one: plain, and tracked."""
    times: dict[str, list[float]] = {"plain": [], "tracked": []}
    with temporary_settings(_NO_HEARTBEAT):
        for _ in range(number + 1):
            for name, called in (("plain", plain), ("tracked", tracked)):
                begun = perf_counter()
                called()
                times[name].append(perf_counter() - begun)
    return {name: each[1:] for name, each in times.items()}


# -- resuming -----------------------------------------------------------------------------


@eval_flow(environments=["bench"], model="bench")
def resumed(segments: int, *, die: bool) -> None:
    """An eval whose first attempt dies when everything is acknowledged."""
    run = current_run()
    if die:
        run.log_episodes(records(SMALL, segments))
        run.flush(None)
        os._exit(0)


def first_attempt(segments: int, file: str) -> None:
    """Leaves so many acknowledged segments, and the id of the flow run in a file."""
    with get_client(sync_client=True) as client:
        made = client.create_flow_run(resumed, parameters={"segments": segments, "die": True})
    Path(file).write_text(str(made.id))
    run_flow(resumed, flow_run=made, parameters=made.parameters)


def second_attempt(file: str) -> dict[str, float]:
    """Seconds of the whole flow run that goes on there, and has nothing left to do."""
    flow_run_id = UUID(Path(file).read_text())
    with temporary_settings(_NO_HEARTBEAT), get_client(sync_client=True) as client:
        plain()  # what a process does once is not part of it
        client.set_flow_run_state(flow_run_id, Scheduled(name="AwaitingRetry"), force=True)
        flow_run = client.read_flow_run(flow_run_id)
        begun = perf_counter()
        run_flow(resumed, flow_run=flow_run, parameters={"segments": 0, "die": False})
        return {"seconds": perf_counter() - begun}


# -- task runs ------------------------------------------------------------------------------


def task_runs(episodes: int, pause: float) -> dict[str, int]:
    """Task runs of an eval with a pause between its episodes, and its segments."""
    found: list[UUID] = []

    @eval_flow(environments=["bench"], model="bench")
    def paced() -> None:
        found.append(UUID(this_flow_run.id))
        run = current_run()
        for record in records(SMALL, episodes):
            run.log_episodes([record])
            time.sleep(pause)

    paced()
    with get_client(sync_client=True) as client:
        names = _names_of_task_runs(client, found[0])
    uploads = [name.split() for name in names if name.startswith("upload ")]
    return {"task runs": len(names), "segments": len({number for _, _, number, *_ in uploads})}


def _names_of_task_runs(client: SyncPrefectClient, flow_run_id: UUID) -> list[str]:
    """The names of all of them; they are recorded a moment after they ended."""
    names: list[str] = []
    while True:
        before, names = len(names), []
        wanted = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
        while page := client.read_task_runs(flow_run_filter=wanted, limit=200, offset=len(names)):
            names += [each.name for each in page]
        if len(names) == before:
            return names
        time.sleep(_SETTLED)
