"""What one ``log_episodes`` costs the eval."""

from collections.abc import Iterator

from benchmarks.lab import Lab, Row
from benchmarks.measuring import median, number, spread
from benchmarks.rows.throughput import TRACES
from benchmarks.workloads import OBJECTS

WORKLOAD = "57 KB"
CALLS = 2_000
#: More than its queue holds: before that is full, prime-runs only takes a reference.
CALLS_OF_OPPONENT = 600
CALLS_WITH_OBJECTS = 4_000
#: Milliseconds.
MEDIAN, P99, P99_TRACES = 0.3, 10.0, 5.0
#: Over ``to_record()``.
MORE_THAN_TO_RECORD = 0.2


def producer(lab: Lab) -> Iterator[Row]:
    """Records as fast as they can be logged, whatever the platform does."""
    calls = lab.scaled(CALLS, least=100)
    of_opponent = lab.scaled(CALLS_OF_OPPONENT, least=300)
    both, traces, opponent = [], [], []
    for _ in range(lab.rounds):
        both.append(lab.run("product:producer", workload=WORKLOAD, number=calls))
        opponent.append(lab.run("opponent:producer", workload=WORKLOAD, number=of_opponent))
        traces.append(lab.run("product:producer", settings=TRACES, workload=WORKLOAD, number=calls))
    for sinks, rounds, bar in (("both sinks", both, P99), ("traces sink", traces, P99_TRACES)):
        for mode in ("healthy", "slow", "down"):
            measured = [each[mode] for each in rounds]
            middle = median(each["median"] for each in measured)
            p99 = median(each["p99"] for each in measured)
            lost = max(each["lost"] for each in measured)
            yield Row(
                f"`log_episodes`, {sinks}",
                f"{WORKLOAD}, platform {mode}",
                _described(measured),
                opponent=_described(opponent) if mode == "healthy" else "",
                bar=f"median ≤ {MEDIAN} ms, p99 ≤ {number(bar)} ms, none lost",
                reached=f"{number(middle)} ms, {number(p99)} ms, {lost} lost",
                met=middle <= MEDIAN and p99 <= bar and not lost,
            )


def producer_objects(lab: Lab) -> Iterator[Row]:
    """The same with verifiers' objects, beside what asking them for their record takes."""
    calls = lab.scaled(CALLS_WITH_OBJECTS, least=100)
    measured = [
        lab.run("product:objects", workload=OBJECTS, number=calls) for _ in range(lab.rounds)
    ]
    more = median(each["median"] / each["to_record"] - 1 for each in measured)
    alone = spread([each["to_record"] for each in measured], "ms")
    yield Row(
        "`log_episodes`, both sinks",
        OBJECTS,
        f"{_described(measured)}; `to_record()` alone {alone}",
        bar=f"≤ {MORE_THAN_TO_RECORD:.0%} over `to_record()`",
        reached=f"{more:+.0%}",
        met=more <= MORE_THAN_TO_RECORD,
    )


def _described(measured: list[dict[str, float]]) -> str:
    middle = spread([each["median"] for each in measured], "ms")
    return f"median {middle}, p99 {spread([each['p99'] for each in measured], 'ms')}"
