"""The kill harness of the tests, for as long as you like.

``python benchmarks/kill_harness.py --seeds 500 --first 1000`` runs so many seeds, half of them
against a faulty platform, and prints the totals; the exit status is 1 if anything was lost,
there twice, left open or closed wrongly.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
os.environ["DO_NOT_TRACK"] = "1"


def main() -> int:
    """Run the harness; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Before Prefect is imported: it reads its home then.
        os.environ["PREFECT_HOME"] = f"{folder}/prefect"
        os.environ["HOME"] = folder
        from kill_harness import NAMES, run_all
        from prefect.testing.utilities import prefect_test_harness

        with prefect_test_harness(server_startup_timeout=120):
            found = run_all(given.seeds, Path(folder), first=given.first)
    for name, totals in zip(NAMES, found, strict=True):
        print(f"{name}: {totals}")
        for problem in totals.problems:
            print(f"  {problem}")
    return 1 if any(totals.problems for totals in found) else 0


if __name__ == "__main__":
    sys.exit(main())
