"""A flow run that goes on without the spool of its earlier attempt begins the next evaluation."""

import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL
from prefect.states import Scheduled
from support import Evaluations

from prefect_prime.flows import current_run, eval_flow
from prefect_prime.flows.reconcile import reconcile
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")


def attempt(flow: Any, flow_run_id: UUID) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run_id, Scheduled(), force=True)
        flow_run = client.read_flow_run(flow_run_id)
    run_flow(flow, flow_run=flow_run, parameters=flow_run.parameters, return_type="state")


@pytest.mark.parametrize("fails", [True, False], ids=["failed", "completed and removed"])
def test_the_next_generation_is_opened_and_names_the_one_before(
    platform: LocalPlatform,
    evaluations: Evaluations,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    fails: bool,
) -> None:
    name = f"elsewhere-{uuid4().hex[:8]}"
    failing = [fails, False]

    @eval_flow(environments=["toy"], evaluation_name=name, credentials=platform.credentials)
    def entrypoint() -> None:
        current_run().log_episodes([episode(rewards=1.0, example_id=1)])
        if failing.pop(0):
            raise RuntimeError("the machine is on fire")

    entrypoint(return_state=True)
    (first,) = evaluations.named(name)
    flow_run_id = UUID(first["metadata"]["prefect"]["flow_run_id"])
    if fails:
        monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", str(tmp_path / "another machine's"))
    attempt(entrypoint, flow_run_id)

    second, first = evaluations.named(name)
    assert first["status"] == ("FAILED" if fails else "COMPLETED")
    assert second["status"] == "COMPLETED"
    assert f"retry-of:{first['id']}" in second["tags"]
    assert f"prefect-flow-run:{flow_run_id}:2" in second["tags"]
    assert [row["example_id"] for row in evaluations.rows(second["id"])] == [1]


ENTRYPOINT = """
import os, sys
from uuid import UUID
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.records import episode

@eval_flow(environments=["toy"], evaluation_name=sys.argv[1])
def entrypoint():
    run = current_run()
    run.log_episodes([episode(rewards=1.0, example_id=1)])
    if run.attempt == 1:
        os._exit(9)

if len(sys.argv) > 2:
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(UUID(sys.argv[2]))
    run_flow(entrypoint, flow_run=flow_run)
else:
    entrypoint()
"""


def test_one_that_its_dead_machine_left_open_is_closed_and_its_records_still_come(
    platform: LocalPlatform,
    evaluations: Evaluations,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Its owner's spool comes back with the machine: what it holds belongs where it was logged."""
    name = f"elsewhere-{uuid4().hex[:8]}"
    script = tmp_path / "entrypoint.py"
    script.write_text(ENTRYPOINT)
    credentials = platform.credentials
    monkeypatch.setenv("PRIME_API_KEY", credentials.api_key.get_secret_value())
    monkeypatch.setenv("PRIME_API_BASE_URL", credentials.base_url)
    monkeypatch.setenv("PRIME_TRACES_URL", credentials.traces_url or "")
    monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value() or "")
    died, lives = tmp_path / "died", tmp_path / "lives"
    monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", str(died))
    assert subprocess.run([sys.executable, script, name], check=False).returncode == 9
    (first,) = evaluations.named(name)
    assert first["status"] == "RUNNING"
    flow_run_id = first["metadata"]["prefect"]["flow_run_id"]

    monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", str(lives))
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(flow_run_id), Scheduled(), force=True)
    subprocess.run([sys.executable, script, name, flow_run_id], check=True)
    second, first = evaluations.named(name)
    assert (first["status"], second["status"]) == ("FAILED", "COMPLETED")
    assert "generation 2" in first["metadata"]["prime_runs"]["error_message"]

    monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", str(died))
    assert evaluations.rows(first["id"]) == []
    reconcile(orphaned_after=0.0)
    assert [row["example_id"] for row in evaluations.rows(first["id"])] == [1]
    assert evaluations.named(name)[1]["status"] == "FAILED"
