"""The repository's ``prefect.yaml``: every key is known, no secret is in it, and it deploys."""

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.cli.deploy._models import (
    ConcurrencyLimitSpec,
    DeploymentConfig,
    PrefectYamlModel,
    RawScheduleConfig,
    WorkPoolConfig,
)
from prefect.utilities.importtools import import_object
from pydantic import BaseModel
from support import DATA, Evaluations, canonical, expected_rows

#: Over the limits of everything that a test waits for, the server's start among it.
pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
FILE = ROOT / "prefect.yaml"
WRITTEN: dict[str, Any] = yaml.safe_load(FILE.read_text())
DEPLOYMENTS: list[dict[str, Any]] = WRITTEN["deployments"]


def known(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields) | {
        field.alias for field in model.model_fields.values() if field.alias
    }


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield str(key)
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    else:
        yield str(value)


def test_every_key_is_known_to_prefect_which_ignores_others() -> None:
    assert WRITTEN.keys() <= known(PrefectYamlModel)
    for deployment in DEPLOYMENTS:
        assert deployment.keys() <= known(DeploymentConfig)
        assert deployment["work_pool"].keys() <= known(WorkPoolConfig)
        for schedule in deployment.get("schedules", []):
            assert schedule.keys() <= known(RawScheduleConfig)
        assert deployment.get("concurrency_limit", {}).keys() <= known(ConcurrencyLimitSpec)


def test_the_nightly_eval_the_upload_and_reconcile_are_deployed() -> None:
    assert {each["name"]: each["entrypoint"] for each in DEPLOYMENTS} == {
        "nightly": "prefect_prime.flows.demo:demo",
        "upload": "prefect_prime.flows.upload:upload",
        "reconcile": "prefect_prime.flows.reconcile:reconcile",
    }
    (nightly,) = [each for each in DEPLOYMENTS if each["name"] == "nightly"]
    (schedule,) = nightly["schedules"]
    assert schedule["cron"]
    assert schedule["timezone"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda each: each["name"])
def test_every_parameter_is_the_flow_s(deployment: dict[str, Any]) -> None:
    flow = import_object(deployment["entrypoint"])
    assert deployment.get("parameters", {}).keys() <= inspect.signature(flow.fn).parameters.keys()
    required = {
        name: value
        for name, value in flow.parameters.properties.items()
        if name in flow.parameters.required
    }
    if deployment.get("schedules"):
        assert required.keys() <= deployment.get("parameters", {}).keys()


def test_no_secret_is_in_it_nor_would_one_be_put_in_by_deploying() -> None:
    for text in strings(WRITTEN):
        assert "{{" not in text
        assert "$" not in text
    assert not re.search(r"(?i)(api_?key|token|secret|password)\s*:", FILE.read_text())


@pytest.fixture(scope="module")
def registered(deployed):
    """The server, after what the file's first lines tell a person to do."""
    deployed.prefect("deploy", "--all", cwd=ROOT)
    return deployed


@pytest.mark.parametrize("written", DEPLOYMENTS, ids=lambda each: each["name"])
def test_a_deployment_is_registered_as_written(registered, written: dict[str, Any]) -> None:
    flow_name = written["entrypoint"].rpartition(":")[2]
    found = registered.client.read_deployment_by_name(f"{flow_name}/{written['name']}")
    assert found.entrypoint == written["entrypoint"]
    assert found.parameters == written.get("parameters", {})
    assert found.tags == written["tags"]
    assert found.work_pool_name == written["work_pool"]["name"]
    assert found.description == written["description"]
    assert not found.pull_steps
    assert found.job_variables == {}
    assert [
        {"cron": each.schedule.cron, "timezone": each.schedule.timezone, "slug": each.slug}
        for each in found.schedules
    ] == written.get("schedules", [])
    assert all(each.active for each in found.schedules)


def test_one_reconcile_runs_at_a_time_and_the_next_does_not_queue(registered) -> None:
    found = registered.client.read_deployment_by_name("reconcile/reconcile")
    assert found.global_concurrency_limit.limit == 1
    assert found.concurrency_options.collision_strategy == "CANCEL_NEW"


def test_the_nightly_deployment_evaluates(registered, closed, evaluations: Evaluations) -> None:
    flow_run = registered.run("demo/nightly", model="deployed", examples=2)
    evaluation = closed("arithmetic-deployed")
    assert evaluation["status"] == "COMPLETED"
    assert len(evaluations.rows(evaluation["id"])) == 2 * flow_run.parameters["rollouts"]


def test_the_upload_deployment_sends_a_finished_run(
    registered, closed, block: str, evaluations: Evaluations
) -> None:
    folder = DATA / "errors"
    registered.run("upload/upload", path=str(folder), credentials=block, evaluation_name="uploaded")
    evaluation = closed("uploaded")
    assert evaluation["status"] == "COMPLETED"
    assert evaluation["team_id"] == "of-the-block"
    assert canonical(evaluations.rows(evaluation["id"])) == canonical(expected_rows(folder))
