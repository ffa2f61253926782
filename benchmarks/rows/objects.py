"""Verifiers' own objects, which are asked for their record on the way."""

from collections.abc import Iterator

from benchmarks.lab import Lab, Row
from benchmarks.measuring import median, spread
from benchmarks.rows.producer import described
from benchmarks.rows.throughput import OPPONENT_PART, row
from benchmarks.workloads import OBJECTS

TOTAL = 50_000_000
CALLS = 4_000
#: Over ``to_record()``.
MORE = 0.2


def objects(lab: Lab) -> Iterator[Row]:
    """Throughput into both sinks, and what one call costs."""
    total = lab.scaled(TOTAL)
    measured = lab.run(
        "objects:objects",
        total=total,
        total_of_opponent=total // OPPONENT_PART,
        calls=lab.scaled(CALLS, least=100),
        rounds=lab.rounds,
    )
    calls = measured.pop("calls")
    speeds = {name: [each["MB/s"] for each in rounds] for name, rounds in measured.items()}
    yield row("end to end, both sinks", OBJECTS, "both", speeds, of_bare=0.25, of_opponent=6)

    more = median(each["median"] / each["to_record"] - 1 for each in calls)
    alone = spread([each["to_record"] for each in calls], "ms")
    yield Row(
        "`log_episodes`, both sinks",
        OBJECTS,
        f"{described(calls)}; `to_record()` alone {alone}",
        bar=f"≤ {MORE:.0%} over `to_record()`",
        reached=f"{more:+.0%}",
        met=more <= MORE,
    )
