"""The one Markdown table, and what it was made on."""

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.lab import Lab, Row

_HEAD: Final = (
    "| measure | workload | prefect-prime | bare pipeline | prime-runs | bar | reached | met |"
)
HEAD: Final = f"{_HEAD}\n{'| --- ' * 8}|"
_PACKAGES: Final = (
    "prefect-prime",
    "prefect",
    "prime-runs",
    "prime-traces",
    "verifiers",
    "httpx",
    "orjson",
    "isal",
)
_MET: Final = {True: "yes", False: "**no**", None: ""}


def line(row: Row) -> str:
    """One row as Markdown."""
    *cells, met = row
    return f"| {' | '.join(map(str, cells))} | {_MET[met]} |"


def document(rows: Iterable[Row], lab: Lab, minutes: float) -> str:
    """The whole file."""
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    now = datetime.now(UTC)
    machine = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    load = f"{os.getloadavg()[0]:.1f}"
    head = [
        "# Results",
        "",
        f"Made by `make bench` on {now:%Y-%m-%d} in {minutes:.0f} minutes; README.md says what",
        "each row is. Medians, with the smallest and the largest in parentheses.",
        "",
        f"- Machine: {_processor()}, {os.cpu_count()} cores, {machine}",
        f"- Load when it was over: {load}",
        f"- Versions: {versions}",
        f"- Rounds: {lab.rounds}; amounts of data: {lab.scale:g} of the whole",
        "",
    ]
    return "\n".join([*head, HEAD, *map(line, rows), ""])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [each.partition(":")[2].strip() for each in lines if each.startswith("model name")]
    return names[0] if names else platform.machine()
