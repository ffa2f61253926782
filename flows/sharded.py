"""One evaluation over many workers.

``run_sharded`` is called inside an eval's entrypoint. That eval opens the evaluation and closes
it; its shards are guests, each with its own part of the examples::

    @eval_flow(environments=["gsm8k"], model="{model}")
    def nightly(model: str) -> None:
        run_sharded("part/evals", shards=8, parameters={"model": model})

    @eval_flow(evaluation_id="{evaluation_id}")
    def part(evaluation_id: str, shard: int, shards: int, model: str) -> None:
        run = current_run()
        mine = share(dataset(), shard=shard, shards=shards, key=lambda task: task.idx)
        for task in run.remaining(mine, key=lambda task: task.idx):
            run.log_episodes([rollout(model, task)])
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Protocol
from uuid import UUID

from prefect import Task

from prefect_prime.errors import ConfigurationError, RunFinishedError, ShardFailedError
from prefect_prime.flows.run import EvalRun, current_run
from prefect_prime.flows.shard_runs import ShardRuns, cancel_shards, start
from prefect_prime.flows.shard_tasks import ShardTasks
from prefect_prime.sharding import share

__all__ = ["run_sharded", "share"]

#: Seconds between two looks at flow runs, and at tasks, which costs no request.
_POLL_RUNS = 2.0
_POLL_TASKS = 0.2


class _Shards(Protocol):
    failed: dict[int, str]

    def look(self) -> bool: ...


def run_sharded(
    deployment: str | UUID | Task[..., Any],
    *,
    shards: int = 8,
    parameters: Mapping[str, Any] | None = None,
    retries: int = 2,
) -> None:
    """Run the current eval in shards, and wait until each is over.

    ``deployment`` (``"flow/deployment"``, or its id) is run ``shards`` times: an eval flow with
    ``evaluation_id="{evaluation_id}"`` that takes ``evaluation_id``, ``shard`` (from 0),
    ``shards`` and the ``parameters``. A Prefect task in its place is submitted to the eval's own
    task runner; it takes ``run``, ``shard``, ``shards`` and the ``parameters``. Either asks
    ``share`` for its part, and ``run.remaining`` for what of that is still to be done.

    A shard that fails or crashes is run again alone, up to ``retries`` times; the others go on.
    Raises ``ShardFailedError`` when all are over and one has failed for good, or was cancelled.
    Left in any other way (the eval is cancelled, its process is told to go), it cancels the
    shards; an eval that is tried again then goes on with the same ones.

    Raises ``ConfigurationError`` outside an eval, where deployed shards have no evaluation to log
    into (offline, untracked), and in a coroutine: ``await asyncio.to_thread(run_sharded, ...)``.
    """
    _require_a_thread()
    run = current_run()
    if shards < 1:
        raise ConfigurationError(f"shards={shards} is not a number of shards")
    given = dict(parameters or {})
    if isinstance(deployment, Task):
        _run_tasks(deployment, run, given, shards=shards, retries=retries)
    else:
        _run_deployed(deployment, run, given, shards=shards, retries=retries)


def _run_deployed(
    deployment: str | UUID,
    run: EvalRun,
    parameters: Mapping[str, Any],
    *,
    shards: int,
    retries: int,
) -> None:
    if run.id is None or run.flow_run_id is None:
        raise ConfigurationError(
            "there is no open evaluation for deployed shards to log into: this eval is offline,"
            " or not tracked. Tasks in place of a deployment work there too."
        )
    try:
        started = start(deployment, run.flow_run_id, run.id, parameters, shards)
        run.log.info("%d shards are flow runs of %s.", shards, deployment)
        _wait(ShardRuns(started, run.log, retries=retries), run, _POLL_RUNS)
    except ShardFailedError:
        raise  # all are over
    except BaseException:
        cancel_shards(run.flow_run_id, run.log)
        raise


def _run_tasks(
    task: Task[..., Any],
    run: EvalRun,
    parameters: Mapping[str, Any],
    *,
    shards: int,
    retries: int,
) -> None:
    tasks = ShardTasks(
        task, run, parameters, run.log, shards=shards, retries=retries, logged=run.logged_anywhere
    )
    try:
        _wait(tasks, run, _POLL_TASKS)
    except ShardFailedError:
        raise
    except BaseException:
        tasks.cancel()
        raise


def _wait(shards: _Shards, run: EvalRun, pause: float) -> None:
    while shards.look():
        if run.has_ended:  # in a thread that its entrypoint has not waited for
            raise RunFinishedError(f"the run {run.name!r} ended before its shards")
        time.sleep(pause)
    if shards.failed:
        each = [f"shard {number}: {why}" for number, why in sorted(shards.failed.items())]
        raise ShardFailedError("; ".join(each))


def _require_a_thread() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigurationError(
        "run_sharded waits, and would stop the event loop: await asyncio.to_thread(run_sharded,"
        " ...) in a coroutine"
    )
