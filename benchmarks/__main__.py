"""``python -m benchmarks``: measure, and print one Markdown table.

A whole run is written to ``RESULTS.md`` beside this file; a part of one, or a smaller one,
only where ``--output`` says.
"""

import argparse
import sys
from pathlib import Path
from time import monotonic

from benchmarks.lab import Row, open_lab
from benchmarks.rows import ROWS
from benchmarks.table import HEAD, document, line

RESULTS = Path(__file__).parent / "RESULTS.md"
ROUNDS = 3
#: Of the data, in two minutes.
QUICK = 0.04


def main() -> int:
    """Measure; the exit status is 1 where something could not be measured."""
    given = _arguments()
    scale = given.scale or (QUICK if given.quick else 1.0)
    rounds = given.rounds or (1 if given.quick else ROUNDS)
    output = given.output or (RESULTS if scale == 1 and not given.only else None)
    begun = monotonic()
    rows: list[Row] = []
    failed = False
    print(HEAD, flush=True)
    with open_lab(scale, rounds) as lab:
        for name in given.only or ROWS:
            started = monotonic()
            try:
                for row in ROWS[name](lab):
                    rows.append(row)
                    print(line(row), flush=True)
            except Exception as error:  # noqa: BLE001 - the other rows are worth having
                failed = True
                print(f"{name}: {error}", file=sys.stderr, flush=True)
            print(f"{name}: {monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        text = document(rows, lab, (monotonic() - begun) / 60)
    if output is not None:
        output.write_text(text)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAME", nargs="+", choices=ROWS, help=f"some of: {', '.join(ROWS)}"
    )
    parser.add_argument("--quick", action="store_true", help="two minutes: less data, one round")
    parser.add_argument("--scale", type=float, help="a factor of every amount of data")
    parser.add_argument("--rounds", type=int, help="how often each is measured")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where the table goes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
