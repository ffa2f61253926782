"""What other processes do in the tests of guests: they must be able to import it."""

import os
import pickle
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from support import wait_until

from prefect_prime.flows import EvalRun, current_run
from prefect_prime.records import episode


def rollouts(worker: object, count: int) -> list[dict[str, Any]]:
    return [
        episode(rewards=1.0, example_id=f"{worker}/{number}", info={"by": str(worker)})
        for number in range(count)
    ]


def by_worker(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    """By who logged them: the numbers of the rows, in the platform's order."""
    found: dict[str, list[int]] = {}
    for row in rows:
        worker, number = row["example_id"].split("/")
        found.setdefault(worker, []).append(int(number))
    return found


def log(run: EvalRun, worker: object, count: int) -> int:
    run.log_episodes(rollouts(worker, count))
    return os.getpid()


def log_into_the_inherited_run(worker: object, count: int) -> int:
    return log(current_run(), worker, count)


def log_and_be_killed(run: EvalRun, worker: object, count: int) -> None:
    log(run, worker, count)
    os.kill(os.getpid(), signal.SIGKILL)


def log_one_that_cannot_be_stored(run: EvalRun) -> None:
    run.log_episodes([{"id": 7, "traces": []}, *rollouts("good", 1)])
    run.update_summary({"from_a_guest": 3})
    assert run.rejected_records == 1


def log_when_the_entrypoint_has_returned(run: EvalRun, ledger: Path, worker: object) -> None:
    log(run, worker, 1)

    def has_returned() -> bool:
        with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT 1 FROM facts WHERE key = 'returned'").fetchall()
        return bool(found)

    wait_until(has_returned)
    log(run, worker, 3)


def pass_on(run: EvalRun, worker: object, count: int) -> bytes:
    log(run, f"{worker}-first", count)
    return pickle.dumps(run)


def log_into_a_pickle(pickled: bytes, worker: object, count: int) -> None:
    log(pickle.loads(pickled), worker, count)  # noqa: S301 - our own
