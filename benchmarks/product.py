"""Evals that are tracked, as a user writes them, with a clock inside.

Each function runs in a process of its own, against the stub and a Prefect server.
"""

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measuring import median, of_calls, peak_memory
from benchmarks.stub import Mode, set_mode
from benchmarks.workloads import OBJECTS, records, size_of
from prefect_prime.flows import EvalRun, current_run, eval_flow

#: Seconds that the uploads are waited for at most, when the platform was away before.
_PATIENCE = 300.0


def throughput(workload: str, total: int) -> dict[str, float]:
    """MB/s of JSON for about ``total`` bytes, from the first record until all are stored."""
    size = size_of(workload)
    number = max(1, total // size)
    return {"MB/s": number * size / 1e6 / log_all(workload, number)["seconds"]}


def memory(workload: str, number: int) -> dict[str, float]:
    """MB at most, and seconds from the first record until all are stored."""
    measured = log_all(workload, number)
    return {**measured, "MB": peak_memory()}


def log_all(workload: str, number: int) -> dict[str, float]:
    """Seconds from the first record until all are stored."""
    prepared = records(workload, number)

    def body(run: EvalRun) -> dict[str, float]:
        begun = perf_counter()
        for record in prepared:
            run.log_episodes([record])
        run.flush(None)
        return {"seconds": perf_counter() - begun}

    return _evaluated(body)


def producer(workload: str, number: int) -> dict[str, dict[str, float]]:
    """Milliseconds of one ``log_episodes`` call, by how the platform is; and how many records
    did not arrive when it was healthy again.
    """
    modes: tuple[Mode, ...] = ("healthy", "slow", "down")
    return {mode: _producer(workload, number, mode) for mode in modes}


def _producer(workload: str, number: int, mode: Mode) -> dict[str, float]:
    url = os.environ["PRIME_TRACES_URL"]
    prepared = records(workload, number)

    def body(run: EvalRun) -> dict[str, float]:
        set_mode(url, mode)
        times = [_milliseconds(run.log_episodes, [each]) for each in prepared]
        set_mode(url, "healthy")
        run.flush(_PATIENCE)
        lost = number - min(run.stored_records[sink] for sink in _sinks())
        return {**of_calls(times), "lost": lost}

    return _evaluated(body)


def objects(number: int) -> dict[str, float]:
    """Milliseconds of ``to_record()`` alone and of ``log_episodes``, each of every other record."""
    prepared = records(OBJECTS, number)

    def body(run: EvalRun) -> dict[str, float]:
        alone, logged = [], []
        for position, episode in enumerate(prepared):
            if position % 2:
                alone.append(_milliseconds(episode.to_record))
            else:
                logged.append(_milliseconds(run.log_episodes, [episode]))
        return {"to_record": median(alone), **of_calls(logged)}

    return _evaluated(body)


def backfill(path: str) -> dict[str, float]:
    """MB/s of ``upload``, and MB of memory at most."""
    from prefect_prime.flows.upload import upload

    begun = perf_counter()
    _check(upload(path, environment="bench"))
    seconds = perf_counter() - begun
    return {"MB/s": Path(path).stat().st_size / 1e6 / seconds, "MB": peak_memory()}


def _evaluated(body: Callable[[EvalRun], dict[str, float]]) -> dict[str, float]:
    """What ``body`` returns, of an eval of which nothing was lost."""
    measured: dict[str, float] = {}

    @eval_flow(environments=["bench"], model="bench", framework="verifiers", on_error="raise")
    def bench() -> None:
        measured.update(body(current_run()))

    _check(bench())
    return measured


def _check(result: Any) -> None:
    losses = [count for sink in result.losses.values() for count in sink.values()]
    if result.status != "COMPLETED" or any([*losses, result.rejected, result.dropped]):
        raise RuntimeError(f"this eval is not whole, so its numbers are worth nothing: {result}")


def _milliseconds(call: Callable[..., Any], *arguments: Any) -> float:
    begun = perf_counter()
    call(*arguments)
    return 1e3 * (perf_counter() - begun)


def _sinks() -> list[str]:
    return os.environ.get("PREFECT_PRIME_SINKS", "traces,samples").split(",")
