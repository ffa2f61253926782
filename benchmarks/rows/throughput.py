"""From the first record until everything is stored."""

from collections.abc import Iterator
from typing import Any

from benchmarks.lab import Lab, Row
from benchmarks.measuring import median, number, spread
from benchmarks.workloads import SIZES

TOTAL = 250_000_000
#: The opponent gets a part of it.
OPPONENT_PART = 10

TRACES = {"PREFECT_PRIME_SINKS": "traces"}


def throughput(lab: Lab) -> Iterator[Row]:
    """Mappings: the traces sink alone, and both sinks."""
    total = lab.scaled(TOTAL)
    for workload in SIZES:
        speeds: dict[str, list[float]] = {"bare": [], "traces": [], "opponent": [], "both": []}
        of_opponent = {"workload": workload, "total": total // OPPONENT_PART}
        of_ours = {"workload": workload, "total": total}
        for _ in range(lab.rounds):
            speeds["bare"].append(_speed(lab, "bare", **of_ours))
            speeds["traces"].append(_speed(lab, "product", settings=TRACES, **of_ours))
            speeds["opponent"].append(_speed(lab, "opponent", **of_opponent))
            speeds["both"].append(_speed(lab, "product", **of_ours))
        measure = "end to end,"
        yield row(f"{measure} traces sink", workload, "traces", speeds, of_bare=0.6, of_opponent=15)
        yield row(f"{measure} both sinks", workload, "both", speeds, of_bare=0.25)


def stub(lab: Lab) -> Iterator[Row]:
    """What the stub can take: to be far over what anybody sends."""
    speeds = [
        lab.run("bare:stub_alone", total=4 * lab.scaled(TOTAL))["MB/s"] for _ in range(lab.rounds)
    ]
    yield Row("the stub itself", "8 MiB of zeros, ready made", "", bare=spread(speeds, "MB/s"))


def _speed(lab: Lab, whose: str, **options: Any) -> float:
    speed: float = lab.run(f"{whose}:throughput", **options)["MB/s"]
    return speed


def row(
    measure: str,
    workload: str,
    ours: str,
    speeds: dict[str, list[float]],
    *,
    of_bare: float,
    of_opponent: float | None = None,
) -> Row:
    """A row whose bars are parts and multiples of what the others reach in the same round."""
    ratios = {
        name: median(a / b for a, b in zip(speeds[ours], speeds[name], strict=True))
        for name in ("bare", "opponent")
    }
    bar = f"≥ {of_bare} × bare"
    reached = f"{number(ratios['bare'])} ×, {number(ratios['opponent'])} ×"
    met = ratios["bare"] >= of_bare
    if of_opponent is not None:
        bar += f", ≥ {of_opponent} × prime-runs"
        met = met and ratios["opponent"] >= of_opponent
    return Row(
        measure,
        workload,
        spread(speeds[ours], "MB/s"),
        spread(speeds["bare"], "MB/s"),
        spread(speeds["opponent"], "MB/s"),
        bar,
        reached,
        met,
    )
