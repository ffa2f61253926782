"""Memory and time, as an eval grows."""

from collections.abc import Iterator

from benchmarks.lab import Lab, Row
from benchmarks.measuring import number
from benchmarks.workloads import SMALL

SMALL_EPISODES = (10_000, 100_000, 1_000_000)
EPISODES_OF_57_KB = (2_000, 20_000)
#: An episode.
BYTES = 100.0
#: MB over a flow that does nothing, at the middle one.
OVER_IDLE = 150.0
#: Of the time of an episode, from one size to ten times that.
GROWTH = 1.3


def memory(lab: Lab) -> Iterator[Row]:
    """Once each, because the largest takes minutes; both sinks."""
    idle = lab.run("flow_runs:idle")["MB"]
    numbers = [lab.scaled(each, least=10) for each in SMALL_EPISODES]
    small = [lab.run("product:memory", workload=SMALL, number=each) for each in numbers]
    sizes = " → ".join(f"{each:,}" for each in numbers)

    peaks = [each["MB"] for each in small]
    slope = 1e6 * (peaks[2] - peaks[1]) / (numbers[2] - numbers[1])
    over = peaks[1] - idle
    yield Row(
        "peak memory, both sinks",
        f"small episodes, {sizes}",
        f"{_series(peaks)} MB; an idle flow {number(idle)} MB",
        bar=f"≤ {number(BYTES)} bytes an episode, ≤ {number(OVER_IDLE)} MB over idle",
        reached=f"{number(slope)} bytes, {number(over)} MB",
        met=slope <= BYTES and over <= OVER_IDLE,
    )

    few, many = (lab.scaled(each, least=10) for each in EPISODES_OF_57_KB)
    first, last = (
        lab.run("product:memory", workload="57 KB", number=each)["MB"] for each in (few, many)
    )
    slope = 1e6 * (last - first) / (many - few)
    yield Row(
        "peak memory, both sinks",
        f"57 KB, {few:,} → {many:,}",
        f"{_series([first, last])} MB",
        bar=f"≤ {number(BYTES)} bytes an episode",
        reached=f"{number(slope)} bytes",
        met=slope <= BYTES,
    )

    seconds = [each["seconds"] for each in small]
    marginal = [
        1e6 * (seconds[step] - seconds[step - 1]) / (numbers[step] - numbers[step - 1])
        for step in (1, 2)
    ]
    yield Row(
        "marginal time of an episode, both sinks",
        f"small episodes, {sizes}",
        f"{_series(marginal)} µs ({_series(seconds)} s in all)",
        bar=f"within {GROWTH} ×",
        reached=f"{number(marginal[1] / marginal[0])} ×",
        met=marginal[1] <= GROWTH * marginal[0],
    )


def _series(values: list[float]) -> str:
    return " → ".join(map(number, values))
