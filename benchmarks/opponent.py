"""prime-runs 0.1.4, and prime-traces' ``upload_file``, as their users call them."""

from pathlib import Path
from time import perf_counter

import prime_runs
from prime_traces import LineFormat, TracesClient

from benchmarks.measuring import of_calls
from benchmarks.workloads import records, size_of


def throughput(workload: str, total: int) -> dict[str, float]:
    """MB/s of JSON for about ``total`` bytes, from the first record until all are sent."""
    size = size_of(workload)
    number = max(1, total // size)
    prepared = records(workload, number)
    run = _run()
    begun = perf_counter()
    for record in prepared:
        run.log_episodes([record])
    flushed = run.flush(None)
    seconds = perf_counter() - begun
    run.finish()
    lost = run.dropped_records + sum(run.failed_records.values())
    if not flushed or run.errors or lost:
        raise RuntimeError(f"prime-runs lost {lost} record(s): {run.errors}")
    return {"MB/s": number * size / 1e6 / seconds}


def producer(workload: str, number: int) -> dict[str, float]:
    """Milliseconds of one ``log_episodes`` call, and records that did not arrive."""
    prepared = records(workload, number)
    run = _run()
    times = []
    for record in prepared:
        begun = perf_counter()
        run.log_episodes([record])
        times.append(1e3 * (perf_counter() - begun))
    run.finish()
    return {**of_calls(times), "lost": run.dropped_records + sum(run.failed_records.values())}


def backfill(path: str) -> dict[str, float]:
    """MB/s of ``TracesClient.upload_file``."""
    begun = perf_counter()
    with TracesClient() as client:
        client.upload_file(path, line_format=LineFormat.EPISODE)
    return {"MB/s": Path(path).stat().st_size / 1e6 / (perf_counter() - begun)}


def _run() -> prime_runs.Run:
    return prime_runs.init(
        name="bench", environments=["bench"], model="bench", framework="verifiers"
    )
