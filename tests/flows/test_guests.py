"""Processes of the same machine log into one evaluation; its owner closes it."""

import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import guest_workers
import pytest
from guest_workers import by_worker
from support import Evaluations

from prefect_prime.errors import ConfigurationError, RunFinishedError
from prefect_prime.flows import EvalRun

pytestmark = pytest.mark.usefixtures("prefect_server")
SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


def test_a_process_pool_logs_into_the_run(
    evaluate: Any, evaluations: Evaluations, spool_dir: Path
) -> None:
    pids: set[int] = set()

    def body(run: EvalRun) -> None:
        with ProcessPoolExecutor(2, mp_context=SPAWN) as pool:
            logged = [pool.submit(guest_workers.log, run, worker, 3) for worker in range(10)]
            run.log_episodes(guest_workers.rollouts("owner", 3))
            pids.update(each.result() for each in logged)

    result = evaluate(body)

    rows = evaluations.rows(result.evaluation_id)
    workers = {"owner", *map(str, range(10))}
    assert by_worker(rows) == {worker: [0, 1, 2] for worker in workers}
    assert os.getpid() not in pids
    assert (result.status, result.episodes, result.summary["avg_reward"]) == ("COMPLETED", 33, 1.0)
    assert evaluations(result.evaluation_id)["metrics"]["prime_runs"] == {
        "traces_episodes_written": 33
    }
    assert [each for each in spool_dir.iterdir() if each.is_dir()] == []


def test_a_forking_pool_finds_the_run_it_inherits(evaluate: Any, evaluations: Evaluations) -> None:
    def body(run: EvalRun) -> None:
        run.log_episodes(guest_workers.rollouts("owner", 2))
        with FORK.Pool(2) as pool:
            pool.starmap(guest_workers.log_into_the_inherited_run, [(n, 2) for n in range(6)])
            pool.close()
            pool.join()

    result = evaluate(body)

    rows = evaluations.rows(result.evaluation_id)
    assert by_worker(rows) == {worker: [0, 1] for worker in ("owner", *map(str, range(6)))}


def test_a_pool_that_stays_alive_holds_nothing_up(evaluate: Any, evaluations: Evaluations) -> None:
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:

        def body(run: EvalRun) -> None:
            pool.submit(guest_workers.log, run, "pool", 2).result()

        first, second = evaluate(body), evaluate(body)

    for result in (first, second):
        assert result.status == "COMPLETED"
        assert by_worker(evaluations.rows(result.evaluation_id)) == {"pool": [0, 1]}


def test_a_guest_passes_the_run_on(evaluate: Any, evaluations: Evaluations) -> None:
    def body(run: EvalRun) -> None:
        with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
            passed = pool.submit(guest_workers.pass_on, run, "guest", 1).result()
        assert pickle.loads(passed) is run  # noqa: S301 - our own
        with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
            pool.submit(guest_workers.log_into_a_pickle, passed, "second", 1).result()

    result = evaluate(body)

    rows = evaluations.rows(result.evaluation_id)
    assert by_worker(rows) == {"guest-first": [0], "second": [0]}


def test_what_a_guest_cannot_store_is_counted_by_the_owner(evaluate: Any) -> None:
    def body(run: EvalRun) -> None:
        with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
            pool.submit(guest_workers.log_one_that_cannot_be_stored, run).result()

    result = evaluate(body)

    assert (result.episodes, result.rejected, result.summary["from_a_guest"]) == (1, 1, 3)


def test_the_owner_waits_for_guests_that_are_still_logging(
    evaluate: Any, evaluations: Evaluations, spool_dir: Path
) -> None:
    processes: list[Any] = []

    def body(run: EvalRun) -> None:
        processes.append(
            SPAWN.Process(
                target=guest_workers.log_when_the_entrypoint_has_returned,
                args=(run, *spool_dir.glob("*/owner/ledger.sqlite3"), "late"),
            )
        )
        processes[0].start()
        while not list(spool_dir.glob("*/guest-*/*.open")):
            assert processes[0].is_alive()

    result = evaluate(body)

    processes[0].join()
    assert processes[0].exitcode == 0
    assert result.status == "COMPLETED"
    assert by_worker(evaluations.rows(result.evaluation_id)) == {"late": [0, 0, 1, 2]}


def test_a_guest_that_outlives_the_end_is_told(
    evaluate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_DRAIN_TIMEOUT", "0")
    pickles: list[bytes] = []
    evaluate(lambda run: pickles.append(pickle.dumps(run)))

    with (
        ProcessPoolExecutor(1, mp_context=SPAWN) as pool,
        pytest.raises((RunFinishedError, ConfigurationError)),
    ):
        pool.submit(guest_workers.log_into_a_pickle, pickles[0], "late", 1).result()
