"""How long it takes until the product can be used."""

import os
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.lab import ROOT, Lab, Row
from benchmarks.measuring import median, number, spread

PROCESSES = 7
#: What is imported, after what, and milliseconds that it may add.
IMPORTS = (
    ("prefect_prime.flows", "from prefect import flow, task", 150),
    ("prefect_prime.blocks", "import prefect.blocks", 60),
)


def imports(lab: Lab) -> Iterator[Row]:
    """Each time in a new process, whose import of Prefect itself is not counted."""
    for module, before, bar in IMPORTS:
        _added(lab, module, before)  # compiles
        times = [_added(lab, module, before) for _ in range(lab.scaled(PROCESSES, least=2))]
        yield Row(
            f"import of `{module}`",
            f"after `{before}`",
            spread(times, "ms"),
            bar=f"≤ {bar} ms",
            reached=f"{number(median(times))} ms",
            met=median(times) <= bar,
        )


def _added(lab: Lab, module: str, before: str) -> float:
    clock = "from time import perf_counter"
    program = f"{clock}; {before}; a = perf_counter(); import {module}; print(perf_counter() - a)"
    environment = {**lab.environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return 1e3 * float(done.stdout)
