"""Threads, forks, pools and other machines log into one evaluation; its owner closes it."""

import asyncio
import gc
import multiprocessing
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import guest_workers
import pytest
from prefect.settings import PREFECT_API_URL
from support import Evaluations

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.errors import ConfigurationError, RunFinishedError
from prefect_prime.flows import EvalResult, EvalRun, current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")
SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def evaluate(platform: LocalPlatform) -> Callable[..., EvalResult]:
    """Run a body as an eval."""

    def run(body: Callable[[EvalRun], None], **options: Any) -> EvalResult:
        options = {"credentials": platform.credentials, **options}

        @eval_flow(environments=["toy"], **options)
        def entrypoint() -> None:
            body(current_run())

        result: EvalResult = entrypoint()
        return result

    return run


def spool(own_home: Path) -> Path:
    return own_home / ".prefect-prime" / "spool"


def ledger(own_home: Path) -> Path:
    (found,) = spool(own_home).glob("*/owner/ledger.sqlite3")
    return found


def by_worker(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    """By who logged them: the numbers of the rows, in the platform's order."""
    found: dict[str, list[int]] = {}
    for row in rows:
        worker, number = row["example_id"].split("/")
        found.setdefault(worker, []).append(int(number))
    return found


def forked(work: Callable[[], object]) -> int:
    """Do something in a fork of this process; its id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        gc.collect()
        os._exit(0)
    finally:
        os._exit(1)


# -- pools -------------------------------------------------------------------------------


def test_a_process_pool_logs_into_the_run(
    evaluate: Any, evaluations: Evaluations, own_home: Path
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
    assert [each for each in spool(own_home).iterdir() if each.is_dir()] == []


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


# -- forks -------------------------------------------------------------------------------


def test_a_fork_in_the_middle_of_uploads_sends_nothing_twice_and_breaks_nothing(
    evaluate: Any, evaluations: Evaluations, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_SEGMENT_BYTES", "4000")
    children: list[int] = []

    def body(run: EvalRun) -> None:
        for number in range(6):
            run.log_episodes(guest_workers.rollouts(f"owner{number}", 10))
            child = f"child{number}"
            children.append(forked(lambda: guest_workers.log(run, child, 10)))  # noqa: B023 - called at once
        assert [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in children] == [0] * 6
        assert run.flush()
        with closing(sqlite3.connect(ledger(own_home))) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        run.log_episodes(guest_workers.rollouts("after", 2))

    result = evaluate(body)

    rows = by_worker(evaluations.rows(result.evaluation_id))
    wanted = {f"{who}{n}": list(range(10)) for who in ("owner", "child") for n in range(6)}
    assert rows == {**wanted, "after": [0, 1]}
    assert result.status == "COMPLETED"


def test_a_killed_guest_loses_nothing_that_it_had_logged(
    evaluate: Any, evaluations: Evaluations
) -> None:
    def body(run: EvalRun) -> None:
        process = SPAWN.Process(target=guest_workers.log_and_be_killed, args=(run, "killed", 5))
        process.start()
        child = forked(lambda: guest_workers.log_and_be_killed(run, "forked", 5))
        process.join()
        os.waitpid(child, 0)
        assert process.exitcode == -9

    result = evaluate(body)

    rows = by_worker(evaluations.rows(result.evaluation_id))
    assert rows == {"killed": list(range(5)), "forked": list(range(5))}


def test_the_owner_waits_for_guests_that_are_still_logging(
    evaluate: Any, evaluations: Evaluations, own_home: Path
) -> None:
    processes: list[Any] = []

    def body(run: EvalRun) -> None:
        processes.append(
            SPAWN.Process(
                target=guest_workers.log_when_the_entrypoint_has_returned,
                args=(run, ledger(own_home), "late"),
            )
        )
        processes[0].start()
        while not list(spool(own_home).glob("*/guest-*/*.open")):
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


def test_a_fork_that_comes_back_from_the_entrypoint_finishes_nothing(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    pids: list[int] = []

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        run = current_run()
        run.log_episodes(guest_workers.rollouts("owner", 1))
        child = forked(lambda: come_back(run))
        pids.append(child)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def come_back(run: EvalRun) -> None:
        guest_workers.log(run, "child", 1)
        run.end()
        assert not run.is_here

    result = entrypoint()

    assert by_worker(evaluations.rows(result.evaluation_id)) == {"owner": [0], "child": [0]}


def test_a_guest_does_not_claim_to_know_what_is_logged(evaluate: Any) -> None:
    def ask(run: EvalRun) -> None:
        with pytest.raises(ConfigurationError, match="process that the eval runs in"):
            run.remaining([1, 2], key=int)

    def body(run: EvalRun) -> None:
        run.log_episodes(guest_workers.rollouts("owner", 1))
        assert os.waitstatus_to_exitcode(os.waitpid(forked(lambda: ask(run)), 0)[1]) == 0

    assert evaluate(body).episodes == 1


# -- another machine ---------------------------------------------------------------------


def test_a_guest_on_another_machine_uploads_itself_and_closes_nothing(
    evaluate: Any,
    platform: LocalPlatform,
    evaluations: Evaluations,
    tmp_path: Path,
) -> None:
    credentials = platform.credentials
    elsewhere = tmp_path / "elsewhere"

    def body(run: EvalRun) -> None:
        pickled = pickle.dumps(run)
        assert credentials.api_key.get_secret_value().encode() not in pickled
        (tmp_path / "run.pickle").write_bytes(pickled)
        done = subprocess.run(
            [sys.executable, guest_workers.__file__, str(tmp_path / "run.pickle"), "away", "3"],
            env={
                **os.environ,
                "PREFECT_API_URL": PREFECT_API_URL.value() or "",
                "PREFECT_PRIME_SPOOL_DIR": str(elsewhere),
                "PRIME_API_KEY": credentials.api_key.get_secret_value(),
                "PRIME_API_BASE_URL": credentials.base_url,
                "PRIME_TRACES_URL": credentials.traces_url or "",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert by_worker(evaluations.rows(run.id or "")) == {"away": [0, 1, 2]}, done.stderr
        assert evaluations(run.id or "")["status"] == "RUNNING"
        run.log_episodes(guest_workers.rollouts("owner", 1))

    result = evaluate(body)

    rows = by_worker(evaluations.rows(result.evaluation_id))
    assert rows == {"away": [0, 1, 2], "owner": [0]}
    assert evaluations(result.evaluation_id)["status"] == "COMPLETED"
    assert [each for each in elsewhere.iterdir() if each.is_dir()] == []


def test_a_pickle_holds_no_key_but_maybe_a_block_s_name(platform: LocalPlatform) -> None:
    PrimeCredentials(
        api_key=platform.credentials.api_key,
        base_url=platform.credentials.base_url,
        traces_url=platform.credentials.traces_url,
    ).save("for-guests", overwrite=True)
    pickles: list[bytes] = []

    @eval_flow(environments=["toy"], credentials="for-guests")
    def entrypoint() -> None:
        pickles.append(pickle.dumps(current_run()))

    entrypoint()

    assert b"for-guests" in pickles[0]
    assert platform.credentials.api_key.get_secret_value().encode() not in pickles[0]


# -- threads -----------------------------------------------------------------------------


def test_many_threads_lose_nothing_and_keep_their_order(
    evaluate: Any, evaluations: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_SEGMENT_BYTES", "50000")

    def body(run: EvalRun) -> None:
        def work(worker: int) -> None:
            for each in guest_workers.rollouts(worker, 40):
                run.log_episodes([{**each, "run": {"id": f"producer-{worker}"}}])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))

    result = evaluate(body)

    rows = evaluations.rows(result.evaluation_id)
    assert by_worker(rows) == {str(worker): list(range(40)) for worker in range(8)}
    for row in rows:
        worker = row["example_id"].split("/")[0]
        assert row["info"]["native_wrapper"]["run"]["id"] == f"producer-{worker}"


# -- several evals in one process --------------------------------------------------------


def eval_of(platform: LocalPlatform, who: str, name: str, count: int = 5) -> Any:
    @eval_flow(environments=["toy"], credentials=platform.credentials, evaluation_name=name)
    async def entrypoint() -> None:
        run = current_run()
        for each in guest_workers.rollouts(who, count):
            await asyncio.sleep(0)
            assert current_run() is run
            current_run().log_episodes([each])

    return entrypoint


def test_two_evals_side_by_side_keep_apart(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    async def both() -> list[EvalResult]:
        evals = [eval_of(platform, who, f"side-{who}") for who in ("left", "right")]
        return await asyncio.gather(*(each() for each in evals))

    left, right = asyncio.run(both())

    assert left.evaluation_id != right.evaluation_id
    for result, who in ((left, "left"), (right, "right")):
        assert by_worker(evaluations.rows(result.evaluation_id)) == {who: list(range(5))}
        assert evaluations(result.evaluation_id)["status"] == "COMPLETED"
        assert not [tag for tag in evaluations(result.evaluation_id)["tags"] if "parent" in tag]


def test_two_evals_in_threads_keep_apart_one_failing(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    at_once = threading.Barrier(2)

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint(who: str) -> str | None:
        at_once.wait(60)
        current_run().log_episodes(guest_workers.rollouts(who, 5))
        at_once.wait(60)
        if who == "bad":
            raise ValueError("bad")
        return current_run().id

    with ThreadPoolExecutor(2) as pool:
        good, bad = (pool.submit(entrypoint, who, return_state=True) for who in ("good", "bad"))
        assert bad.result().is_failed()
        evaluation_id = good.result().result()

    assert by_worker(evaluations.rows(evaluation_id)) == {"good": list(range(5))}
    assert evaluations(evaluation_id)["status"] == "COMPLETED"


def test_a_nested_eval_is_one_of_its_own_and_tagged_with_its_parent(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    name = f"nested-{uuid4().hex[:8]}"
    inner_fails = [False, True]
    inner_ids: list[str] = []

    @eval_flow(environments=["toy"], credentials=platform.credentials, evaluation_name=name)
    def inner(fails: bool) -> None:  # noqa: FBT001 - a flow's parameter
        inner_ids.append(current_run().id or "")
        current_run().log_episodes(guest_workers.rollouts("inner", 2))
        if fails:
            raise ValueError("inner")

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def outer() -> None:
        run = current_run()
        run.log_episodes(guest_workers.rollouts("outer", 1))
        for fails in inner_fails:
            inner(fails, return_state=True)
        assert current_run() is run
        run.log_episodes([episode(rewards=0.0, example_id="outer/1")])

    result = outer()

    around = evaluations(result.evaluation_id)
    parent = f"prefect-parent:{around['metadata']['prefect']['flow_run_id']}"
    assert by_worker(evaluations.rows(result.evaluation_id)) == {"outer": [0, 1]}
    assert (around["status"], parent in around["tags"]) == ("COMPLETED", False)
    for evaluation_id, status in zip(inner_ids, ("COMPLETED", "FAILED"), strict=True):
        evaluation = evaluations(evaluation_id)
        assert (evaluation["status"], parent in evaluation["tags"]) == (status, True)
        assert by_worker(evaluations.rows(evaluation_id)) == {"inner": [0, 1]}
    assert Counter(inner_ids)[result.evaluation_id] == 0
