"""What tracking adds to a flow run."""

from collections.abc import Iterator

from benchmarks.lab import Lab, Row
from benchmarks.measuring import median, number, spread

FLOW_RUNS = 10
#: Seconds.
OVERHEAD = 0.3

SEGMENTS = 1_000
#: Each record is a segment of its own.
ONE_RECORD_A_SEGMENT = {"PREFECT_PRIME_SEGMENT_BYTES": "1"}
#: Milliseconds a segment.
RESUME = 1.0

#: An episode a second for so long ...
HOURS = 12
#: ... goes on faster here by this much ...
HASTE = 100
#: ... and for this part of it.
PART = 36
#: A segment closes after ten seconds.
SEGMENT_AGE = 10.0
TASK_RUNS = 10_000
#: Task runs that are no uploads.
OTHERS = 3


def tracking(lab: Lab) -> Iterator[Row]:
    """An eval with one episode beside a flow with one task, alternately in one process."""
    runs = lab.run("flow_runs:overhead", number=lab.scaled(FLOW_RUNS, least=3))
    added = median(runs["tracked"]) - median(runs["plain"])
    yield Row(
        "tracking overhead",
        "one episode; a plain flow with one task",
        f"{spread(runs['tracked'], 's')}; plain {spread(runs['plain'], 's')}",
        bar=f"≤ {OVERHEAD} s",
        reached=f"{number(added)} s",
        met=added <= OVERHEAD,
    )


def resume(lab: Lab) -> Iterator[Row]:
    """A flow run that goes on in a new process, beside one that had a single segment."""
    segments = lab.scaled(SEGMENTS, least=20)
    many, one = [], []
    for _ in range(lab.rounds):
        many.append(_resumed(lab, segments))
        one.append(_resumed(lab, 1))
    each = 1e3 * (median(many) - median(one)) / (segments - 1)
    yield Row(
        "resume",
        f"{segments:,} acknowledged segments",
        f"{spread(many, 's')}; one segment {spread(one, 's')}",
        bar=f"≤ {number(RESUME)} ms a segment",
        reached=f"{number(each)} ms",
        met=each <= RESUME,
    )


def _resumed(lab: Lab, segments: int) -> float:
    file = str(lab.folder / "flow-run-id")
    lab.run("flow_runs:first_attempt", settings=ONE_RECORD_A_SEGMENT, segments=segments, file=file)
    seconds: float = lab.run("flow_runs:second_attempt", file=file)["seconds"]
    return seconds


def task_runs(lab: Lab) -> Iterator[Row]:
    """Counted for a part of the time, and reckoned from that for all of it."""
    episodes = lab.scaled(HOURS * 3_600 // PART, least=50)
    measured = lab.run(
        "flow_runs:task_runs",
        settings={"PREFECT_PRIME_SEGMENT_AGE": str(SEGMENT_AGE / HASTE)},
        episodes=episodes,
        pause=1 / HASTE,
    )
    runs, segments = measured["task runs"], measured["segments"]
    others = runs - 2 * segments
    # At a hundred times the pace a segment holds what the machine got done in its time.
    whole = round(2 * HOURS * 3_600 / SEGMENT_AGE) + others
    yield Row(
        "task runs of an attempt",
        f"{episodes:,} episodes, one a second (here {HASTE} times as fast)",
        f"{runs:,} for {segments:,} segments; {whole:,} in {HOURS} hours",
        bar=f"≤ 2 a segment + {OTHERS}; ≤ {TASK_RUNS:,} in {HOURS} hours",
        reached=f"2 a segment {others:+d}; {whole:,}",
        met=others <= OTHERS and whole <= TASK_RUNS,
    )
