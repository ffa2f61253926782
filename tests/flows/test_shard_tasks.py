"""An eval in shards that are tasks of its own task runner: threads, or a Dask cluster."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import pytest
import sharding
from prefect_dask import DaskTaskRunner
from sharding import EXAMPLES, noted
from support import Evaluations
from tracked import numbers

from prefect_prime.errors import ShardFailedError
from prefect_prime.flows import EvalResult, eval_flow
from prefect_prime.flows.sharded import run_sharded

pytestmark = pytest.mark.usefixtures("prefect_server", "account")
EACH_TWICE = {example: [1, 2] for example in EXAMPLES}


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where spools lie, here and for the workers."""
    return tmp_path_factory.mktemp("spool")


@pytest.fixture(autouse=True)
def here(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", str(spool))


@pytest.fixture(scope="module")
def cluster(spool: Path) -> Iterator[distributed.LocalCluster]:
    """Two worker processes on this machine, without credentials: they only append."""
    env = {"PREFECT_PRIME_SPOOL_DIR": str(spool)}
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, env=env
    ) as started:
        yield started


@pytest.fixture
def on_dask(cluster: distributed.LocalCluster) -> DaskTaskRunner:
    return DaskTaskRunner(address=cluster.scheduler_address)


def in_shards(shards: int = 3, *, task_runner: Any = None, **parameters: Any) -> EvalResult:
    @eval_flow(environments=["toy"], task_runner=task_runner)
    def entrypoint() -> None:
        run_sharded(sharding.part, shards=shards, parameters=parameters)

    result: EvalResult = entrypoint()
    return result


def test_a_dask_cluster_runs_the_shards_of_one_evaluation(
    on_dask: DaskTaskRunner, evaluations: Evaluations, tmp_path: Path
) -> None:
    result = in_shards(task_runner=on_dask, notes=tmp_path)

    assert numbers(evaluations.rows(result.evaluation_id)) == EACH_TWICE
    evaluation = evaluations(result.evaluation_id)
    assert (evaluation["status"], result.episodes) == ("COMPLETED", 24)
    assert evaluation["metrics"]["avg_reward"] == pytest.approx(0.55)
    processes = noted(tmp_path)
    assert set(processes) == {0, 1, 2}
    assert [os.getpid()] not in processes.values()


@pytest.mark.parametrize("trouble", ["fails", "dies"])
def test_a_shard_that_fails_or_whose_dask_worker_dies_is_run_again_alone_and_goes_on(
    trouble: str, on_dask: DaskTaskRunner, evaluations: Evaluations, tmp_path: Path
) -> None:
    result = in_shards(task_runner=on_dask, notes=tmp_path, trouble=trouble)

    assert numbers(evaluations.rows(result.evaluation_id)) == EACH_TWICE
    assert result.episodes == 24
    assert {shard: len(runs) for shard, runs in noted(tmp_path).items()} == {0: 1, 1: 2, 2: 1}


def test_workers_that_cannot_log_fail_their_shards(
    on_dask: DaskTaskRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", str(tmp_path / "elsewhere"))

    with pytest.raises(ShardFailedError, match="no credentials here to log with"):
        in_shards(task_runner=on_dask, notes=tmp_path)


def test_threads_run_them_too_and_a_failed_one_goes_on(
    evaluations: Evaluations, tmp_path: Path
) -> None:
    result = in_shards(notes=tmp_path, trouble="fails")

    assert numbers(evaluations.rows(result.evaluation_id)) == EACH_TWICE
    assert noted(tmp_path) == {0: [os.getpid()], 1: [os.getpid()] * 2, 2: [os.getpid()]}


def test_one_that_fails_for_good_fails_the_eval(tmp_path: Path) -> None:
    @eval_flow(environments=["toy"])
    def entrypoint() -> None:
        parameters = {"notes": tmp_path, "trouble": "fails"}
        run_sharded(sharding.part, shards=2, parameters=parameters, retries=0)

    with pytest.raises(ShardFailedError, match=r"^shard 2: ValueError: in the middle$"):
        entrypoint()


def test_a_coroutine_runs_them_from_a_thread(evaluations: Evaluations) -> None:
    @eval_flow(environments=["toy"])
    async def entrypoint() -> None:
        await asyncio.to_thread(run_sharded, sharding.async_part, shards=2)

    result = asyncio.run(entrypoint())

    assert numbers(evaluations.rows(result.evaluation_id)) == {each: [1] for each in EXAMPLES}


def test_they_run_without_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_RUNS_MODE", "disabled")

    assert in_shards(notes=tmp_path).episodes == 24
