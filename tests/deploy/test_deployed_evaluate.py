"""A verifiers evaluation on a worker, cancelled in the middle."""

import os
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.deployments.runner import EntrypointType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling
from support import Evaluations, episodes_of, wait_until
from toy_model import TOY, Model, write_config

from prefect_prime.flows.evaluate import evaluate

#: Over the limits of everything that a test waits for, the server's start among it.
pytestmark = pytest.mark.timeout(600)


def ended(deployed: Any, flow_run_id: UUID) -> bool:
    return bool(deployed.client.read_flow_run(flow_run_id).state.is_final())


def test_a_cancellation_cancels_it_and_keeps_what_is_finished(
    deployed: Any, closed: Any, evaluations: Evaluations, tmp_path: Path
) -> None:
    with Model() as model:
        write_config(model, tmp_path / "eval.toml", ["add", "hold"], name="cancelled", rollouts=1)
        deployment: Any = evaluate.to_deployment(
            "cancelled",
            parameters={"config": "eval.toml"},
            entrypoint_type=EntrypointType.MODULE_PATH,
            work_pool_name="evals",
            job_variables={
                # Where the config is, and the run's directory.
                "working_dir": str(tmp_path),
                "env": {
                    "TOY_KEY": "toy",
                    "PYTHONPATH": os.pathsep.join(
                        [str(TOY), *filter(None, [os.environ.get("PYTHONPATH")])]
                    ),
                },
            },
        )
        with temporary_settings({PREFECT_API_URL: deployed.url}):
            flow_run = deployed.client.create_flow_run_from_deployment(deployment.apply())
        wait_until(lambda: model.holding.is_set() or ended(deployed, flow_run.id), seconds=180)
        assert model.holding.is_set(), deployed.logs_of(flow_run.id)
        directory = tmp_path / "outputs" / "cancelled"
        wait_until(lambda: len(episodes_of(directory)) == 1)
        deployed.client.set_flow_run_state(flow_run.id, Cancelling())

        evaluation = closed("cancelled")

    assert evaluation["status"] == "CANCELLED", deployed.logs_of(flow_run.id)
    (row,) = evaluations.rows(evaluation["id"])
    assert [row["episode_id"]] == [each["id"] for each in episodes_of(directory)]
