"""A full disk in the middle of an eval, or a spool that is gone: under ``warn`` it goes on."""

import json
from typing import Any

import pytest
from eval_processes import EvalProcesses
from left_behind import reconciled
from support import Evaluations

pytestmark = pytest.mark.usefixtures("prefect_server", "account")

#: A full disk without a disk, as in the spool's own tests; a folder that is gone is what nobody may
#: write, root neither. A line of JSON says what the flow run knows at the end.
TROUBLED = """
import json, resource, sys
from pathlib import Path
from tracked import rollout
from prefect_prime.flows import current_run, eval_flow

name, how, spools = sys.argv[1:]

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

@eval_flow(environments=["toy"], evaluation_name=name)
def entrypoint():
    run = current_run()
    run.log_episodes([rollout(0)])
    assert run.flush()
    (owner,) = Path(spools).glob("*/owner")
    if how == "a folder that is gone":
        owner.rename(owner.with_name("aside"))
    else:
        limit(20_000)
    for task in range(1, 81):
        run.log_episodes([rollout(task)])
    assert 0 < run.dropped_records <= 80, run.dropped_records
    run.update_summary({"mine": 1})
    if how == "a folder that is gone":
        owner.with_name("aside").rename(owner)
    if how != "a disk that stays full":
        limit(resource.RLIM_INFINITY)
        run.log_episodes([rollout(81)])

state = entrypoint(return_state=True)
result = state.result()
limit(resource.RLIM_INFINITY)
print(json.dumps({
    "state": state.name, "message": state.message, "status": result.status,
    "kept": result.episodes, "dropped": result.dropped,
}))
"""


@pytest.mark.parametrize(
    "how", ["a disk that is full for a while", "a folder that is gone", "a disk that stays full"]
)
def test_the_eval_goes_on_and_counts_what_it_lost(
    how: str, eval_processes: EvalProcesses, evaluations: Evaluations, name: str, spool_dir: Any
) -> None:
    process = eval_processes.run(TROUBLED, name, how, spool_dir)

    assert process.returncode == 0, process.output
    (told,) = (json.loads(line) for line in process.output.splitlines() if line[:1] == "{")
    assert told["state"] == "Completed"
    assert told["kept"] + told["dropped"] == (81 if how == "a disk that stays full" else 82)
    assert f"{told['dropped']} dropped" in told["message"]
    if how == "a disk that stays full":
        assert told["status"] == evaluations.only(name)["status"] == "RUNNING"
        assert "still to be sent to traces" in told["message"]
        assert reconciled(name)[0]["status"] == "COMPLETED"
    else:
        assert told["status"] == "COMPLETED"
    evaluation = evaluations.only(name)
    assert evaluation["status"] == "COMPLETED"
    assert evaluation["metrics"]["prime_runs"] == {"traces_episodes_written": told["kept"]}
    examples = [row["example_id"] for row in evaluations.rows(evaluation["id"])]
    assert len(set(examples)) == len(examples) == told["kept"]
