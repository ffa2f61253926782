"""Evals that were killed, and ``reconcile`` on what they left."""

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from eval_processes import EvalProcesses
from faulty_proxy import Fault
from support import Evaluations, wait_until

from prefect_prime.flows import current_run
from prefect_prime.flows.reconcile import reconcile
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

#: Logs three episodes, says so, and goes on until it is killed.
KILLED = """
import json, sys, time
from pathlib import Path
from prefect.runtime import flow_run
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.records import episode

name, marker, options = sys.argv[1:]

@eval_flow(environments=["toy"], evaluation_name=name, **json.loads(options))
def killed():
    for n in range(3):
        message = {"role": "user", "content": f"question {n}"}
        current_run().log_episodes(
            [episode([message], rewards=1.0, example_id=n, id=f"{name}-{n}")]
        )
    Path(marker).write_text(flow_run.id)
    time.sleep(600)

killed()
"""


class Evals:
    """Evals in processes of their own."""

    def __init__(self, processes: EvalProcesses, folder: Path) -> None:
        self._processes = processes
        self._folder = folder

    @contextmanager
    def running(self, name: str, **options: Any) -> Iterator[UUID]:
        """The flow run of an eval that has logged three episodes; it is killed at the end."""
        marker = self._folder / f"{name}.marker"
        with self._processes.running(KILLED, name, marker, json.dumps(options)) as process:
            wait_until(lambda: marker.exists() or process.has_ended(), seconds=120)
            assert not process.has_ended(), process.output
            yield UUID(wait_until(marker.read_text))

    def killed(self, name: str, **options: Any) -> UUID:
        """The flow run of an eval that was killed after it had logged three episodes."""
        with self.running(name, **options) as flow_run_id:
            return flow_run_id


def log_three(name: str) -> None:
    """As such an eval does, in this process."""
    for n in range(3):
        message = {"role": "user", "content": f"question {n}"}
        made = episode([message], rewards=1.0, example_id=n, id=f"{name}-{n}-{uuid4().hex}")
        current_run().log_episodes([made])


def reconciled(name: str, **options: Any) -> list[dict[str, Any]]:
    """Reconcile with no patience; what it found of the evaluations that bear a name."""
    found: list[dict[str, Any]] = reconcile(**{"orphaned_after": 0.0, **options})
    return [each for each in found if each["name"].startswith(name)]


def assert_whole(
    platform: LocalPlatform, evaluations: Evaluations, name: str, count: int = 3
) -> None:
    """The one evaluation of that name has every record once, in both sinks."""
    evaluation = evaluations.only(name)
    ids = [row["sample_id"] for row in evaluations.rows(evaluation["id"])]
    assert len(set(ids)) == len(ids) == count
    with platform.credentials.get_traces_client() as traces:
        stored = traces.list(run_id=evaluation["id"], limit=100).items
    assert len(stored) == count


def no_samples(_method: str, path: str) -> Fault | None:
    """A platform that takes no samples for now."""
    return "429 before" if path.endswith("samples") else None


def age(folder: Path, *, days: float) -> None:
    """Make everything in a spool have happened that long ago."""
    then = time.time() - days * 86_400
    with closing(sqlite3.connect(folder / "ledger.sqlite3")) as ledger, ledger:
        ledger.execute("UPDATE deliveries SET changed_at = ?", (then,))
    for path in folder.iterdir():
        os.utime(path, (then, then))
