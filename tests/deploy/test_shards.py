"""An eval in shards, on real workers: one of them killed, or all of it cancelled."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any
from uuid import UUID

import pytest
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun
from support import Evaluations, wait_until

pytestmark = pytest.mark.timeout(600)
SHARD_POOL = "shards"
FLOWS = """
    import os, signal, time
    from pathlib import Path

    from prefect_prime.flows import current_run, eval_flow
    from prefect_prime.flows.sharded import run_sharded, share
    from prefect_prime.records import episode


    @eval_flow(environments=["toy"], evaluation_name="{{name}}")
    def whole(name: str, folder: str, waits: bool = False) -> None:
        run_sharded(
            "part/shards", shards=3, parameters={"folder": folder, "waits": waits}
        )


    @eval_flow(evaluation_id="{evaluation_id}")
    def part(
        evaluation_id: str, shard: int, shards: int, folder: str, waits: bool = False
    ) -> None:
        run = current_run()
        notes = Path(folder)
        (notes / f"{shard}-{os.getpid()}").touch()
        if waits:
            time.sleep(600)
        mine = share(list(range(12)) * 2, shard=shard, shards=shards, key=int)
        for number, example in enumerate(run.remaining(mine, key=int)):
            run.log_episodes([episode(rewards=example / 10, example_id=example)])
            if shard == 1 and number == 1 and not (notes / "killed").exists():
                (notes / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
""".replace("{{name}}", "{name}")


@pytest.fixture(scope="module")
def sharding(deployed: Any, worker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A parent on one pool, its shards on another, which has two workers."""
    folder = tmp_path_factory.mktemp("flows")
    (folder / "sharding.py").write_text(dedent(FLOWS))
    with worker(SHARD_POOL), worker(SHARD_POOL):
        deploy = ["deploy", "-n", "shards", "-p"]
        deployed.prefect(*deploy, SHARD_POOL, "sharding.py:part", cwd=folder)
        deployed.prefect(*deploy, "evals", "sharding.py:whole", cwd=folder)
        yield deployed


def shards_of(deployed: Any, flow_run_id: UUID) -> list[FlowRun]:
    tags = FlowRunFilterTags(all_=[f"prime-shard-of:{flow_run_id}"])
    return deployed.client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=tags))


def test_a_shard_that_was_killed_is_run_again_and_nothing_is_missing_or_twice(
    sharding: Any, closed: Any, evaluations: Evaluations, tmp_path: Path
) -> None:
    flow_run = sharding.run("whole/shards", name="sharded", folder=str(tmp_path))

    evaluation = closed("sharded")
    rows = Counter(row["example_id"] for row in evaluations.rows(evaluation["id"]))
    assert rows == dict.fromkeys(range(12), 2)
    assert evaluation["status"] == "COMPLETED"
    assert evaluation["metrics"]["avg_reward"] == pytest.approx(0.55)
    shards = shards_of(sharding, flow_run.id)
    assert [shard.state_type.value for shard in shards if shard.state_type] == ["COMPLETED"] * 3
    assert len(list(tmp_path.glob("1-*"))) == 2
    assert len(list(tmp_path.glob("[02]-*"))) == 2


def test_cancelling_the_eval_cancels_its_shards(sharding: Any, closed: Any, tmp_path: Path) -> None:
    deployment = sharding.client.read_deployment_by_name("whole/shards")
    parameters = {"name": "cancelled", "folder": str(tmp_path), "waits": True}
    flow_run = sharding.client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
    wait_until(lambda: len(list(tmp_path.glob("*-*"))) == 3, seconds=120)

    sharding.prefect("flow-run", "cancel", str(flow_run.id))

    assert closed("cancelled")["status"] == "CANCELLED"

    def all_over() -> list[FlowRun] | None:
        found = shards_of(sharding, flow_run.id)
        return found if all(each.state and each.state.is_final() for each in found) else None

    over = wait_until(all_over, seconds=120)
    assert [each.state.type.value for each in over if each.state] == ["CANCELLED"] * 3
