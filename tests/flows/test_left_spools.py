"""How long a spool is waited for and kept, and the sweep of dead ones when an eval starts."""

import os
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from faulty_proxy import FaultyProxy, healthy
from left_behind import Evals, age, assert_whole, no_samples, reconciled
from prefect.states import Crashed
from support import Evaluations, wait_until
from tracked import set_state

from prefect_prime.flows import eval_flow
from prefect_prime.flows.reconcile import reconcile
from prefect_prime.local import LocalPlatform
from prefect_prime.settings import load_settings
from prefect_prime.spool import Spool, store
from prefect_prime.spool.lease import Lease

pytestmark = pytest.mark.usefixtures("prefect_server", "account")


def test_records_in_another_store_are_waited_for_until_the_deadline(
    evaluations: Evaluations, evals: Evals, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_state(evals.killed(name), Crashed(message="its machine is gone"))
    monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", str(Path.home() / "another-store"))

    assert reconciled(name, undelivered_after=3600.0)[0]["status"] is None
    assert evaluations.only(name)["status"] == "RUNNING"

    assert reconciled(name, undelivered_after=0.0)[0]["status"] == "FAILED"
    evaluation = evaluations.only(name)
    assert evaluation["status"] == "FAILED"
    assert evaluation["error_message"] == "crashed: its machine is gone"
    assert evaluation["metadata"]["prefect"]["undelivered"] is True


def test_an_evaluation_whose_spool_is_gone_is_closed_at_once(
    evaluations: Evaluations, evals: Evals, name: str
) -> None:
    flow_run_id = evals.killed(name)
    set_state(flow_run_id, Crashed())
    store.remove(store.owner_folder(load_settings().spool_dir, flow_run_id))

    assert reconciled(name)[0]["status"] == "FAILED"
    assert evaluations.only(name)["status"] == "FAILED"


# -- retention -------------------------------------------------------------------------------


def test_the_spool_of_a_closed_evaluation_is_kept_for_a_week(evals: Evals, name: str) -> None:
    flow_run_id = evals.killed(name)
    set_state(flow_run_id, Crashed())
    reconciled(name)
    folder = store.owner_folder(load_settings().spool_dir, flow_run_id)

    age(folder, days=6.9)
    reconciled(name)
    assert folder.exists()
    age(folder, days=7.1)
    reconciled(name)
    assert not folder.parent.exists()


def test_what_is_still_to_be_sent_is_never_removed(
    platform: LocalPlatform,
    evaluations: Evaluations,
    evals: Evals,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FaultyProxy(platform, no_samples) as proxy:
        monkeypatch.setenv("PRIME_API_BASE_URL", proxy.url)
        flow_run_id = evals.killed(name)
        set_state(flow_run_id, Crashed())
        (finding,) = reconciled(name, drain_timeout=0.0)
        assert finding["status"] == "FAILED"
        assert "'pending': 3" in finding["note"]

        folder = store.owner_folder(load_settings().spool_dir, flow_run_id)
        age(folder, days=100)
        with monkeypatch.context() as without:
            without.delenv("PRIME_API_KEY")
            reconciled(name)
        assert folder.exists()

        proxy.decide = healthy
        reconciled(name)
    assert_whole(platform, evaluations, name)


@pytest.mark.parametrize("died", ["without a lease", "without a ledger", "without a plan"])
def test_a_spool_whose_owner_died_before_it_planned_anything_goes_as_well(
    died: str, spool_dir: Path
) -> None:
    folder = store.owner_folder(spool_dir, uuid4())
    if died == "without a plan":
        Spool(folder, segment_bytes=4096).close()
    else:
        store.private(folder)
        if died == "without a ledger":
            (folder / "lease").touch()

    touch(folder, days=6.9)
    reconcile()
    assert folder.exists()
    touch(folder, days=7.1)
    lease = Lease.take(folder)
    assert lease is not None
    touch(folder, days=7.1)
    reconcile()
    assert folder.exists()  # its owner lives
    lease.release()
    reconcile()
    assert not folder.parent.exists()


def touch(folder: Path, *, days: float) -> None:
    then = time.time() - days * 86_400
    for path in (folder, *folder.iterdir()):
        os.utime(path, (then, then))


def test_records_whose_ledger_is_lost_are_never_removed(spool_dir: Path) -> None:
    folder = store.owner_folder(spool_dir, uuid4())
    store.private(folder)
    (folder / "000001.episode.jsonl").write_bytes(b"{}\n")

    touch(folder, days=100)
    reconcile()
    assert folder.exists()


# -- the sweep when an eval starts --------------------------------------------------------------


def test_an_eval_that_starts_finishes_what_is_over_on_its_machine(
    platform: LocalPlatform, evaluations: Evaluations, evals: Evals, name: str, capfd: Any
) -> None:
    set_state(evals.killed(name), Crashed())
    evals.killed(f"{name}-still-running")

    @eval_flow(environments=["toy"], evaluation_name=f"{name}-next")
    def entrypoint() -> None:
        wait_until(lambda: evaluations.only(name)["status"] == "FAILED")

    entrypoint()

    assert_whole(platform, evaluations, name)
    assert evaluations.only(f"{name}-still-running")["status"] == "RUNNING"
    assert name not in capfd.readouterr().err.replace(f"{name}-next", "")
