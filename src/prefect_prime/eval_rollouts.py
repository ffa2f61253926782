"""The rollouts of a verifiers evaluation, in this process, through verifiers' own parts.

What its command does around them is left out: its dashboard, and its upload.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from prefect_prime.errors import ConfigurationError

if TYPE_CHECKING:
    from verifiers.v1.configs.cli.eval import EvalConfig
    from verifiers.v1.env import Env, RunSlot
    from verifiers.v1.episode import Episode
    from verifiers.v1.task import Task

#: By which what a run's processes share is told apart from other runs'.
_SCOPE: Final = "VF_RUN_ID"


class Rollouts:
    """An environment that is loaded, and the tasks that were selected in it.

    Raises what the environment's own code raises, and ``ConfigurationError`` for a task set
    without an end.
    """

    def __init__(self, config: "EvalConfig") -> None:
        from verifiers.v1.utils.loaders import load_environment  # noqa: PLC0415 - an extra

        self._config = config
        self._env: Env[Any] = load_environment(config.env)
        taskset = self._env.taskset.select(config.select)
        if not taskset.bounded:
            raise ConfigurationError(
                f"the task set {config.env.taskset.id!r} is infinite: bound it with select.limit"
            )
        self.tasks: list[Task] = list(taskset)

    @property
    def planned(self) -> int:
        """How many episodes there will be in the end."""
        return len(self.tasks) * int(self._config.num_rollouts)

    def complete(self, episode: Any) -> bool:
        """The environment's own verdict whether an episode is a valid result."""
        return bool(self._env.complete(episode))

    async def run(
        self,
        owed: list[tuple["Task", int]],
        run_id: str,
        on_episode: Callable[["Episode"], Awaitable[None]],
    ) -> None:
        """Run what is owed, ``max_concurrent`` episodes at a time.

        ``on_episode`` gets each as it completes, stamped with the run. What it raises ends the
        others, each with what it holds: a container, a sandbox.
        """
        from verifiers.v1.cli.eval.runner import gather_rollouts  # noqa: PLC0415 - an extra
        from verifiers.v1.clients import ModelContext  # noqa: PLC0415 - same
        from verifiers.v1.episode import EvalRunInfo  # noqa: PLC0415 - same
        from verifiers.v1.utils.aio import run_shielded  # noqa: PLC0415 - same

        config = self._config
        context = ModelContext(client=config.client, model=config.model, sampling=config.sampling)
        limit = asyncio.Semaphore(config.max_concurrent) if config.max_concurrent else None
        stamp = EvalRunInfo(id=run_id, name=config.run.name)

        async def completed(episode: "Episode") -> None:
            episode.record_run(stamp)
            # What is finished is kept, also when the end comes in this very moment.
            await run_shielded(on_episode(episode))

        async def played(slot: "RunSlot") -> None:
            await self._env.run_slot(slot, context, limit, completed)
            slot.traces, slot.episode = [], None  # it is on disk: memory need not hold it too

        with _scope(run_id):
            async with self._env.serving():
                slots = [slot for task, count in owed for slot in self._env.slots(task, count)]
                await gather_rollouts(played(slot) for slot in slots)


@contextmanager
def _scope(run_id: str) -> Iterator[None]:
    """Name the run to the processes that it starts, unless somebody has."""
    if _SCOPE in os.environ:
        yield
        return
    os.environ[_SCOPE] = run_id
    try:
        yield
    finally:
        os.environ.pop(_SCOPE, None)
