"""Shards as tasks of the parent's own task runner: threads, processes, a Dask cluster.

Each gets the run, as a guest where it is in another process. The parent runs a failed one again,
and not Prefect or Dask, because only the parent can tell it what it has logged already.
"""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture

from prefect_prime.flows.recording import Log
from prefect_prime.flows.run import EvalRun

#: Seconds that a shard on another machine may still send at its end.
_DRAIN = 60.0


class ShardTasks:
    """The shards of one eval, until each is over. ``logged`` says what is logged by now."""

    def __init__(
        self,
        task: Task[..., Any],
        run: EvalRun,
        parameters: Mapping[str, Any],
        log: Log,
        *,
        shards: int,
        retries: int,
        logged: Callable[[], Counter[Any]],
    ) -> None:
        self._task = task
        self._run = run
        self._parameters = parameters
        self._log = log
        self._shards = shards
        self._retries = retries
        self._logged = logged
        #: By number, from 1: why a shard failed for good.
        self.failed: dict[int, str] = {}
        kept = logged()
        self._tries = dict.fromkeys(range(1, shards + 1), retries)
        self._going = {number: self._submit(number, kept) for number in self._tries}

    def look(self) -> bool:
        """See how the shards are, and run again what is to be; whether any is going on."""
        for number, future in list(self._going.items()):
            if not _is_done(future):
                continue
            del self._going[number]
            try:
                future.result(raise_on_failure=True)
            except Exception as error:  # noqa: BLE001 - whatever it is, the shard failed of it
                self._judge(number, error)
        return bool(self._going)

    def _judge(self, number: int, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}"
        if not self._tries[number]:
            self._log.error("Shard %d of %d failed: %s", number, self._shards, why)
            self.failed[number] = why
            return
        self._tries[number] -= 1
        done = self._retries - self._tries[number]
        self._log.warning(
            "Shard %d of %d is run again: %s (retry %d of %d)",
            number,
            self._shards,
            why,
            done,
            self._retries,
        )
        self._going[number] = self._submit(number, self._logged())

    def cancel(self) -> None:
        """Have no shard begin any more; one that runs is left to its task runner."""
        for future in self._going.values():
            inner = getattr(future, "wrapped_future", None)
            if inner is not None:
                inner.cancel()

    def _submit(self, number: int, kept: Counter[Any]) -> PrefectFuture[Any]:
        task = self._task.with_options(
            task_run_name=f"shard {number} of {self._shards}",
            retries=0,
            cache_policy=NO_CACHE,
        )
        task.fn = _as_shard(task.fn, kept, uuid4().hex, is_async=task.isasync)
        given = {**self._parameters, "run": self._run, "shard": number - 1, "shards": self._shards}
        submitted: PrefectFuture[Any] = task.submit(**given)
        return submitted


def _as_shard(
    fn: Callable[..., Any], kept: Counter[Any], token: str, *, is_async: bool
) -> Callable[..., Any]:
    """The task's function, told what is logged; what it logs has been handed over at its end."""

    def run_in(args: Any, kwargs: Any) -> EvalRun:
        run: EvalRun = inspect.signature(fn).bind(*args, **kwargs).arguments["run"]
        return run

    def enter(run: EvalRun) -> None:
        if not run.is_here:
            run.as_shard(kept, token)

    def leave(run: EvalRun) -> None:
        if not run.is_here:
            run.leave(_DRAIN)

    @functools.wraps(fn)
    def shard(*args: Any, **kwargs: Any) -> Any:
        enter(run := run_in(args, kwargs))
        try:
            return fn(*args, **kwargs)
        finally:
            leave(run)

    @functools.wraps(fn)
    async def async_shard(*args: Any, **kwargs: Any) -> Any:
        enter(run := run_in(args, kwargs))
        try:
            return await fn(*args, **kwargs)
        finally:
            leave(run)

    return async_shard if is_async else shard


def _is_done(future: PrefectFuture[Any]) -> bool:
    inner = getattr(future, "wrapped_future", None)
    # A Dask worker's death is in the inner one alone.
    return bool(inner.done()) if inner is not None else future.state.is_final()
