"""What one ``log_episodes`` costs the eval."""

from collections.abc import Iterator

from benchmarks.lab import Lab, Row
from benchmarks.measuring import median, number, spread
from benchmarks.rows.throughput import TRACES

WORKLOAD = "57 KB"
CALLS = 2_000
#: However little else is measured: before its queue of 256 is full, prime-runs only takes a
#: reference.
CALLS_OF_OPPONENT = 600
#: Milliseconds.
MEDIAN, P99, P99_TRACES = 0.3, 10.0, 5.0


def producer(lab: Lab) -> Iterator[Row]:
    """Records as fast as they can be logged, whatever the platform does."""
    calls = lab.scaled(CALLS, least=100)
    both, traces, opponent = [], [], []
    for _ in range(lab.rounds):
        both.append(lab.run("product:producer", workload=WORKLOAD, number=calls))
        opponent.append(lab.run("opponent:producer", workload=WORKLOAD, number=CALLS_OF_OPPONENT))
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
                described(measured),
                opponent=described(opponent) if mode == "healthy" else "",
                bar=f"median ≤ {MEDIAN} ms, p99 ≤ {number(bar)} ms, none lost",
                reached=f"{number(middle)} ms, {number(p99)} ms, {lost} lost",
                met=middle <= MEDIAN and p99 <= bar and not lost,
            )


def described(measured: list[dict[str, float]]) -> str:
    """The times of single calls, in each round, as a cell."""
    middle, p99 = (spread([each[name] for each in measured], "ms") for name in ("median", "p99"))
    longest = number(max(each["longest"] for each in measured))
    return f"median {middle}, p99 {p99}, longest {longest} ms"
