"""Helpers of the tests of tracked runs: their records, their flow runs, another attempt at one."""

from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.flow_engine import run_flow
from prefect.states import AwaitingRetry

from prefect_prime.records import episode


def rollout(example: object, reward: float = 1.0) -> dict[str, Any]:
    return episode(rewards=reward, example_id=example)  # type: ignore[arg-type]  # some tests lie


def numbers(rows: list[dict[str, Any]]) -> dict[Any, list[int]]:
    """Rollout numbers by example."""
    found: dict[Any, list[int]] = {}
    for row in rows:
        found.setdefault(row["example_id"], []).append(row["rollout_number"])
    return {example: sorted(each) for example, each in found.items()}


def the_flow_run_of(evaluation: dict[str, Any]) -> UUID:
    return UUID(evaluation["metadata"]["prefect"]["flow_run_id"])


def read_flow_run(flow_run_id: UUID) -> FlowRun:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(flow_run_id)


def set_state(flow_run_id: UUID, state: State[Any]) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run_id, state, force=True)


def run_again(flow: Any, flow_run_id: UUID) -> State[Any]:
    """What ``prefect flow-run retry`` and a worker do: the same flow run, once more."""
    set_state(flow_run_id, AwaitingRetry())
    return go_on(flow, flow_run_id)


def go_on(flow: Any, flow_run_id: UUID) -> State[Any]:
    """What a worker does: a flow run that is there already."""
    flow_run = read_flow_run(flow_run_id)
    state: State[Any] = run_flow(
        flow, flow_run=flow_run, parameters=flow_run.parameters, return_type="state"
    )
    return state
