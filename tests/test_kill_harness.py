"""A process may be killed at any moment: nothing is lost, nothing twice, nothing left open."""

import os
from pathlib import Path

import pytest
from kill_harness import NAMES, run_all

#: More for a longer look; `benchmarks/kill_harness.py` is for that.
SEEDS = int(os.environ.get("KILL_SEEDS", "50"))


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("prefect_server")
def test_evals_killed_at_random_lose_nothing_and_leave_nothing_open(tmp_path: Path) -> None:
    found = run_all(SEEDS, tmp_path)

    for name, totals in zip(NAMES, found, strict=True):
        print(f"kill harness, {name}: {totals}")  # noqa: T201 - the harness's totals
    problems = [problem for totals in found for problem in totals.problems]
    assert problems == []
    assert sum(totals.runs for totals in found) == SEEDS
    assert all(totals.kills for totals in found)
