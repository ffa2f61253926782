"""The embedded platform: it is to be no bottleneck of the demo and the tests."""

from collections.abc import Iterator

from benchmarks.lab import Lab, Row
from benchmarks.measuring import median, number, spread

TOTAL = 250_000_000
WORKLOAD = "57 KB"
SPEED = 50.0
#: Milliseconds of the slowest read under load.
READ = 1_000.0


def embedded(lab: Lab) -> Iterator[Row]:
    """Fed by the bare pipeline."""
    total = lab.scaled(TOTAL)
    measured = [
        lab.run("embedded:ingest", workload=WORKLOAD, total=total) for _ in range(lab.rounds)
    ]
    speeds = [each["MB/s"] for each in measured]
    longest = max(each["longest"] for each in measured)
    reads = spread([each["read"] for each in measured], "ms")
    yield Row(
        "embedded platform",
        f"{WORKLOAD}, fed by the bare pipeline, read meanwhile",
        f"{spread(speeds, 'MB/s')}; a read {reads}, the slowest {number(longest)} ms",
        bar=f"≥ {number(SPEED)} MB/s, reads ≤ {number(READ / 1e3)} s",
        reached=f"{number(median(speeds))} MB/s, {number(longest / 1e3)} s",
        met=median(speeds) >= SPEED and longest <= READ,
    )
