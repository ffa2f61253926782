"""A task that is a shard, in the tests of shards: other processes must be able to import it."""

import os
import signal
from pathlib import Path

from prefect import task
from tracked import rollout

from prefect_prime.flows import EvalRun
from prefect_prime.flows.sharded import share

EXAMPLES = range(12)


@task
def part(run: EvalRun, shard: int, shards: int, notes: Path, trouble: str = "") -> None:
    """Two rollouts of each of its examples; ``trouble`` befalls shard 1 once, in the middle.

    Who ran it is noted, a line each.
    """
    with (notes / str(shard)).open("a") as note:
        note.write(f"{os.getpid()}\n")
    mine = share(list(EXAMPLES) * 2, shard=shard, shards=shards, key=int)
    for number, example in enumerate(run.remaining(mine, key=int)):
        if shard == 1 and number == 3 and trouble and not (notes / "befallen").exists():
            (notes / "befallen").touch()
            if trouble == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("in the middle")
        run.log_episodes([rollout(example, example / 10)])


@task
async def async_part(run: EvalRun, shard: int, shards: int) -> None:
    mine = share(EXAMPLES, shard=shard, shards=shards, key=int)
    run.log_episodes([rollout(example) for example in run.remaining(mine, key=int)])


def noted(notes: Path) -> dict[int, list[int]]:
    """By shard: the processes that ran it, in their order."""
    return {
        int(note.name): [int(line) for line in note.read_text().split()]
        for note in notes.glob("[0-9]*")
    }
