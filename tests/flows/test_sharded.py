"""An eval in shards that are deployed flow runs; a thread of the test is their worker."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any
from uuid import UUID, uuid4

import pytest
from eval_processes import EvalProcesses
from left_behind import reconciled
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.states import Running
from support import Evaluations, wait_until
from tracked import go_on, numbers, rollout, set_state, the_flow_run_of

from prefect_prime.errors import ConfigurationError, ShardFailedError
from prefect_prime.flows import current_run, eval_flow, shard_runs, sharded
from prefect_prime.flows.sharded import run_sharded, share
from prefect_prime.spool import store

pytestmark = pytest.mark.usefixtures("prefect_server", "account")
EXAMPLES = range(12)


class Trouble:
    """What is to happen to shards: by shard, on each of their runs the next."""

    def __init__(self) -> None:
        self.planned: dict[int, list[Callable[[], None]]] = {}
        self.begun: list[int] = []

    def befall(self, shard: int) -> None:
        self.begun.append(shard)
        if self.planned.get(shard):
            self.planned[shard].pop(0)()


trouble = Trouble()


@eval_flow(evaluation_id="{evaluation_id}")
def part(evaluation_id: str, shard: int, shards: int, rollouts: int) -> None:  # noqa: ARG001 - the template's
    run = current_run()
    mine = share(list(EXAMPLES) * rollouts, shard=shard, shards=shards, key=int)
    for number, example in enumerate(run.remaining(mine, key=int)):
        if number == 1:
            trouble.befall(shard)
        run.log_episodes([rollout(example, example / 10)])


class Worker:
    """Runs what is scheduled, as a worker does: each in a thread of its own."""

    def __init__(self, deployment: str) -> None:
        self.deployment = deployment
        self.running = True
        self._started: dict[tuple[UUID, Any], threading.Thread] = {}

    def work(self) -> None:
        while self.running:
            for flow_run in self.flow_runs():
                state = flow_run.state
                assert state is not None
                key = (flow_run.id, state.id)
                if state.is_scheduled() and key not in self._started:
                    target = copy_context().run
                    thread = threading.Thread(target=target, args=(go_on, part, flow_run.id))
                    self._started[key] = thread
                    thread.start()
            time.sleep(0.1)
        for thread in self._started.values():
            thread.join()

    def flow_runs(self) -> list[FlowRun]:
        with get_client(sync_client=True) as client:
            deployment = client.read_deployment_by_name(self.deployment)
            found = client.read_flow_runs(limit=200)
        return [each for each in found if each.deployment_id == deployment.id]

    def states(self) -> dict[str, str]:
        return {run.name: run.state.type.value for run in self.flow_runs() if run.state}


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A deployment that nobody runs yet."""
    monkeypatch.setattr(trouble, "planned", {})
    monkeypatch.setattr(trouble, "begun", [])
    monkeypatch.setattr(sharded, "_POLL_RUNS", 0.1)
    name = f"d-{uuid4().hex[:8]}"
    part.to_deployment(name).apply()
    return Worker(f"part/{name}")


@pytest.fixture
def worker(idle: Worker) -> Iterator[Worker]:
    thread = threading.Thread(target=copy_context().run, args=(idle.work,))
    thread.start()
    yield idle
    idle.running = False
    thread.join()


def whole(deployment: str, *, shards: int = 3, **options: Any) -> Any:
    @eval_flow(environments=["toy"], **options)
    def entrypoint() -> None:
        run_sharded(deployment, shards=shards, parameters={"rollouts": 2})

    return entrypoint


def fail() -> None:
    raise ValueError("in the middle")


def test_every_example_is_in_one_shard_with_all_its_rollouts_and_the_summary_covers_all(
    worker: Worker, evaluations: Evaluations
) -> None:
    result = whole(worker.deployment)()

    rows = evaluations.rows(result.evaluation_id)
    assert numbers(rows) == {example: [1, 2] for example in EXAMPLES}
    evaluation = evaluations(result.evaluation_id)
    assert (evaluation["status"], result.episodes) == ("COMPLETED", 24)
    assert evaluation["metrics"]["avg_reward"] == pytest.approx(0.55)
    assert worker.states() == {f"shard {number} of 3": "COMPLETED" for number in (1, 2, 3)}
    parent = the_flow_run_of(evaluation)
    assert all(f"prime-shard-of:{parent}" in run.tags for run in worker.flow_runs())


def test_a_failed_shard_is_run_again_alone_and_goes_on_where_it_stopped(
    worker: Worker, evaluations: Evaluations
) -> None:
    trouble.planned = {1: [fail, fail]}

    result = whole(worker.deployment)()

    assert numbers(evaluations.rows(result.evaluation_id)) == {each: [1, 2] for each in EXAMPLES}
    assert result.episodes == 24
    assert sorted(trouble.begun) == [0, 1, 1, 1, 2]


def test_one_that_fails_for_good_fails_the_eval_once_the_others_are_over(
    worker: Worker, evaluations: Evaluations, name: str
) -> None:
    trouble.planned = {1: [fail] * 3}

    state = whole(worker.deployment, evaluation_name=name)(return_state=True)

    with pytest.raises(ShardFailedError, match=r"^shard 2: Failed: .*ValueError: in the middle"):
        state.result()
    assert sorted(worker.states().values()) == ["COMPLETED", "COMPLETED", "FAILED"]
    assert evaluations.only(name)["status"] == "FAILED"


def test_an_eval_that_is_tried_again_goes_on_with_the_same_shards(
    worker: Worker, evaluations: Evaluations
) -> None:
    attempts: list[str | None] = []

    @eval_flow(environments=["toy"], retries=1)
    def entrypoint() -> None:
        attempts.append(current_run().id)
        run_sharded(worker.deployment, shards=3, parameters={"rollouts": 2}, retries=0)

    trouble.planned = {1: [fail]}

    result = entrypoint()

    assert attempts == [result.evaluation_id] * 2
    assert len(worker.flow_runs()) == 3
    assert numbers(evaluations.rows(result.evaluation_id)) == {each: [1, 2] for each in EXAMPLES}
    assert sorted(trouble.begun) == [0, 1, 1, 2]


def test_an_eval_that_is_left_in_the_middle_cancels_its_shards(
    idle: Worker, evaluations: Evaluations, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(shard_runs.ShardRuns, "look", interrupted)

    with pytest.raises(KeyboardInterrupt):
        whole(idle.deployment, evaluation_name=name)()

    assert set(idle.states().values()) == {"CANCELLED"}
    assert len(idle.states()) == 3
    assert evaluations.only(name)["status"] == "FAILED"


def test_a_cancelled_shard_is_not_run_again(idle: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    look = shard_runs.ShardRuns.look

    def cancelling_one(_: shard_runs.ShardRuns) -> bool:
        monkeypatch.setattr(shard_runs.ShardRuns, "look", look)
        for flow_run in idle.flow_runs():
            shard_runs.cancel_shards(parent_of(flow_run), current_run().log)
        return True

    monkeypatch.setattr(shard_runs.ShardRuns, "look", cancelling_one)

    state = whole(idle.deployment, shards=1)(return_state=True)

    with pytest.raises(ShardFailedError, match="shard 1: it was cancelled"):
        state.result()


def parent_of(flow_run: FlowRun) -> UUID:
    (tag,) = [tag for tag in flow_run.tags if tag.startswith("prime-shard-of:")]
    return UUID(tag.removeprefix("prime-shard-of:"))


def test_one_that_runs_and_whose_spool_nobody_holds_is_dead(
    idle: Worker, spool_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_runs, "_DEAD_AFTER", 0.0)
    look = shard_runs.ShardRuns.look

    def killing_it(_: shard_runs.ShardRuns) -> bool:
        monkeypatch.setattr(shard_runs.ShardRuns, "look", look)
        for flow_run in idle.flow_runs():
            set_state(flow_run.id, Running())
            store.private(store.owner_folder(spool_dir, flow_run.id))
        return True

    monkeypatch.setattr(shard_runs.ShardRuns, "look", killing_it)

    @eval_flow(environments=["toy"])
    def entrypoint() -> None:
        run_sharded(idle.deployment, shards=1, parameters={"rollouts": 1}, retries=0)

    with pytest.raises(ShardFailedError, match="Crashed: its process is gone"):
        entrypoint()


def test_who_closes_a_dead_eval_cancels_its_shards(
    idle: Worker, name: str, eval_processes: EvalProcesses
) -> None:
    script = SHARDING.format(deployment=idle.deployment)
    with eval_processes.running(script, name) as process:
        wait_until(lambda: len(idle.flow_runs()) == 2 or process.has_ended())
        assert not process.has_ended(), process.output
    assert set(idle.states().values()) == {"SCHEDULED"}

    assert [found["status"] for found in reconciled(name)] == ["FAILED"]

    assert set(idle.states().values()) == {"CANCELLED"}


SHARDING = """
import sys
from prefect_prime.flows import eval_flow
from prefect_prime.flows.sharded import run_sharded

@eval_flow(environments=["toy"], evaluation_name=sys.argv[1])
def entrypoint():
    run_sharded("{deployment}", shards=2, parameters={{"rollouts": 1}})

entrypoint()
"""


def test_what_cannot_be_run_in_shards_is_said(
    idle: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="no deployment 'part/none'"):
        whole("part/none")()
    with pytest.raises(ConfigurationError, match="shards=0"):
        whole(idle.deployment, shards=0)()

    @eval_flow(environments=["toy"])
    async def coroutine() -> None:
        run_sharded(idle.deployment)

    with pytest.raises(ConfigurationError, match=r"asyncio.to_thread\(run_sharded"):
        asyncio.run(coroutine())
    monkeypatch.setenv("PRIME_RUNS_MODE", "disabled")
    with pytest.raises(ConfigurationError, match="not tracked"):
        whole(idle.deployment)()
