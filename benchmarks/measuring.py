"""Numbers of several measurements, and how they are written."""

import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path


def median(values: Iterable[float]) -> float:
    """The middle one."""
    return statistics.median(values)


def percentile(values: Iterable[float], percent: int) -> float:
    """The value that ``percent`` of them are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def of_calls(times: Sequence[float]) -> dict[str, float]:
    """What is told of the times of single calls."""
    return {"median": median(times), "p99": percentile(times, 99), "longest": max(times)}


def spread(values: Sequence[float], unit: str = "") -> str:
    """Median, and the smallest and the largest: ``212 (198 to 230) MB/s``."""
    middle = number(median(values))
    inside = f" ({number(min(values))} to {number(max(values))})" if len(values) > 1 else ""
    return f"{middle}{inside} {unit}".rstrip()


def number(value: float) -> str:
    """Three significant digits, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - a third digit


def peak_memory() -> float:
    """MB that this process had in memory at most.

    Not ``ru_maxrss``: that one begins with what the parent had when it made this process.
    """
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024 / 1e6
