"""A deployed eval really runs: on a worker, in another process, loaded by its entrypoint."""

import re
from pathlib import Path
from textwrap import dedent
from uuid import UUID

import pytest
from support import DATA, Evaluations, canonical, expected_rows

#: Over the limits of everything that a test waits for, the server's start among it.
pytestmark = pytest.mark.timeout(600)
CLEAN = DATA / "clean"
#: An eval as a person's own file holds it; the episodes are a real run's.
FLOW = """
    from __future__ import annotations

    import json
    from pathlib import Path

    from prefect_prime.flows import current_run, eval_flow


    @eval_flow(
        environments=["toy"],
        model="{{model}}",
        evaluation_name="by-path-{{model}}",
        credentials="{block}",
        retries=1,
        retry_delay_seconds=0,
    )
    def nightly(folder: Path, model: str = "solver") -> None:
        with (folder / "traces.jsonl").open("rb") as lines:
            current_run().log_episodes(map(json.loads, lines))
"""


def test_a_file_deployed_by_its_path_runs_on_a_worker(
    deployed, closed, evaluations: Evaluations, block: str, tmp_path: Path
) -> None:
    (tmp_path / "evals.py").write_text(dedent(FLOW).format(block=block))
    deployed.prefect("deploy", "evals.py:nightly", "-n", "path", "-p", "evals", cwd=tmp_path)

    given = ["--param", f"folder={CLEAN}", "--param", "model=other"]
    printed = deployed.prefect("deployment", "run", "nightly/path", *given)
    flow_run = deployed.completed(UUID(re.findall(r"UUID: (\S+)", printed)[0]))

    evaluation = closed("by-path-other")
    assert evaluation["status"] == "COMPLETED"
    assert canonical(evaluations.rows(evaluation["id"])) == canonical(expected_rows(CLEAN))
    assert evaluation["team_id"] == "of-the-block"
    assert {"prime", f"prime-eval:{evaluation['id']}"} <= set(flow_run.tags)
    provenance = evaluation["metadata"]["prefect"]
    assert provenance["flow_run_id"] == str(flow_run.id)
    assert provenance["deployment_id"] == str(flow_run.deployment_id)
