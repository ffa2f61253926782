"""The rows of the table, by the name that ``--only`` takes.

Each function makes its measurements in a lab and yields rows; what a number is of, and how
it is taken, is with the function that it calls in a process of its own.
"""

from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.lab import Lab, Row
from benchmarks.rows.backfill import backfill
from benchmarks.rows.embedded import embedded
from benchmarks.rows.flow_runs import resume, task_runs, tracking
from benchmarks.rows.imports import imports
from benchmarks.rows.memory import memory
from benchmarks.rows.objects import objects
from benchmarks.rows.producer import producer
from benchmarks.rows.throughput import stub, throughput

ROWS: Final[dict[str, Callable[[Lab], Iterator[Row]]]] = {
    "stub": stub,
    "throughput": throughput,
    "objects": objects,
    "producer": producer,
    "memory": memory,
    "tracking": tracking,
    "resume": resume,
    "task-runs": task_runs,
    "imports": imports,
    "backfill": backfill,
    "embedded": embedded,
}
