"""A finished run's file, uploaded as a whole."""

from collections.abc import Iterator
from pathlib import Path

import orjson

from benchmarks.lab import Lab, Row
from benchmarks.measuring import number, spread
from benchmarks.rows.throughput import OPPONENT_PART, TRACES
from benchmarks.workloads import records, size_of

TOTAL = 1_000_000_000
WORKLOAD = "57 KB"
BAR = 10.0
#: MB that a file of ten times the size may cost: what is noise.
FLAT = 20.0


def backfill(lab: Lab) -> Iterator[Row]:
    """Once, because a gigabyte takes a while; a tenth of it for the opponent, and for memory."""
    large, small = lab.folder / "large.jsonl", lab.folder / "small.jsonl"
    total = lab.scaled(TOTAL)
    _write(large, total)
    _write(small, total // OPPONENT_PART)
    opponent = lab.run("opponent:backfill", path=str(small))["MB/s"]
    for sinks, settings in (("traces sink", TRACES), ("both sinks", {})):
        few = lab.run("product:backfill", settings=settings, path=str(small))
        many = lab.run("product:backfill", settings=settings, path=str(large))
        ratio = many["MB/s"] / opponent
        more = many["MB"] - few["MB"]
        yield Row(
            f"backfill, {sinks}",
            f"`upload` of {total / 1e6:,.0f} MB",
            f"{spread([many['MB/s']], 'MB/s')}; {number(few['MB'])} → {number(many['MB'])} MB",
            opponent=f"{number(opponent)} MB/s",
            bar=f"≥ {number(BAR)} × `TracesClient.upload_file`, memory flat",
            reached=f"{number(ratio)} ×, {more:+.0f} MB for ten times the file",
            met=ratio >= BAR and more <= FLAT,
        )
    large.unlink()
    small.unlink()


def _write(path: Path, total: int) -> None:
    with path.open("wb") as file:
        for record in records(WORKLOAD, max(1, total // size_of(WORKLOAD))):
            file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
