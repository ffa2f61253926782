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
from prefect.events.actions import RunDeployment
from prefect.events.schemas.deployment_triggers import DeploymentEventTrigger
from prefect.utilities.importtools import import_object
from pydantic import BaseModel
from support import DATA, Evaluations, canonical, expected_rows

#: Over the limits of everything that a test waits for, the server's start among it.
pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
FILE = ROOT / "prefect.yaml"
WRITTEN: dict[str, Any] = yaml.safe_load(FILE.read_text())
DEPLOYMENTS: list[dict[str, Any]] = WRITTEN["deployments"]
BY_NAME = {each["name"]: each for each in DEPLOYMENTS}
#: What the three that go over models are called.
MODELS = ["nightly-small", "nightly-medium", "nightly-large"]


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


def name_of(written: Mapping[str, Any]) -> str:
    return f"{written['entrypoint'].rpartition(':')[2]}/{written['name']}"


def test_every_key_is_known_to_prefect_which_ignores_others() -> None:
    assert WRITTEN.keys() <= known(PrefectYamlModel)
    for deployment in DEPLOYMENTS:
        assert deployment.keys() <= known(DeploymentConfig)
        assert deployment["work_pool"].keys() <= known(WorkPoolConfig)
        for schedule in deployment.get("schedules", []):
            assert schedule.keys() <= known(RawScheduleConfig)
        assert deployment.get("concurrency_limit", {}).keys() <= known(ConcurrencyLimitSpec)
        for trigger in deployment.get("triggers", []):
            assert trigger.keys() <= known(DeploymentEventTrigger)


def test_what_is_deployed() -> None:
    assert [name_of(each) for each in DEPLOYMENTS] == [
        "evaluate/nightly",
        "evaluate/nightly-small",
        "evaluate/nightly-medium",
        "evaluate/nightly-large",
        "evaluate/after-gsm8k",
        "demo/demo",
        "upload/upload",
        "reconcile/reconcile",
    ]
    (schedule,) = BY_NAME["nightly"]["schedules"]
    assert schedule["cron"]
    assert schedule["timezone"]
    assert BY_NAME["nightly"]["parameters"]["gates"]


def test_three_models_differ_in_their_model_alone() -> None:
    models = set()
    for name in MODELS:
        told_apart = ("name", "description", "parameters")
        alike = {key: each for key, each in BY_NAME["nightly"].items() if key not in told_apart}
        assert BY_NAME[name].items() >= alike.items()
        given = dict(BY_NAME[name]["parameters"])
        models.add(given.pop("model"))
        assert given == BY_NAME["nightly"]["parameters"]
    assert len(models) == 3


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda each: each["name"])
def test_every_parameter_is_the_flow_s(deployment: dict[str, Any]) -> None:
    flow = import_object(deployment["entrypoint"])
    given = [deployment, *deployment.get("triggers", [])]
    for each in given:
        assert each.get("parameters", {}).keys() <= inspect.signature(flow.fn).parameters.keys()
    # What Prefect checks when a run is made.
    flow.validate_parameters(
        {**dict.fromkeys(flow.parameters.required, "-"), **deployment.get("parameters", {})}
    )
    required = {
        name: value
        for name, value in flow.parameters.properties.items()
        if name in flow.parameters.required
    }
    if deployment.get("schedules") or deployment.get("triggers"):
        assert required.keys() <= deployment.get("parameters", {}).keys()


def test_no_secret_is_in_it_nor_would_one_be_put_in_by_deploying() -> None:
    for text in strings(WRITTEN):
        # The server fills these in, when the event comes.
        assert "{{" not in text or text.startswith("{{ event.resource[")
        assert "$" not in text
    assert not re.search(r"(?i)(api_?key|token|secret|password)\s*:", FILE.read_text())


@pytest.fixture(scope="module")
def registered(deployed):
    """The server, after what the file's first lines tell a person to do."""
    deployed.prefect("deploy", "--all", cwd=ROOT)
    return deployed


@pytest.mark.parametrize("written", DEPLOYMENTS, ids=lambda each: each["name"])
def test_a_deployment_is_registered_as_written(registered, written: dict[str, Any]) -> None:
    found = registered.client.read_deployment_by_name(name_of(written))
    assert found.entrypoint == written["entrypoint"]
    assert found.parameters == written.get("parameters", {})
    assert found.tags == written["tags"]
    assert found.work_pool_name == written["work_pool"]["name"]
    assert found.description == written["description"]
    assert not found.pull_steps
    assert found.job_variables == written["work_pool"].get("job_variables", {})
    assert [
        {"cron": each.schedule.cron, "timezone": each.schedule.timezone, "slug": each.slug}
        for each in found.schedules
    ] == written.get("schedules", [])
    assert all(each.active for each in found.schedules)
    if limited := written.get("concurrency_limit"):
        assert found.global_concurrency_limit.limit == limited["limit"]
        assert found.concurrency_options.collision_strategy == limited["collision_strategy"]
    else:
        assert found.global_concurrency_limit is None


def test_scheduled_ones_are_not_joined_by_the_next_and_chained_ones_queue() -> None:
    for written in DEPLOYMENTS:
        strategy = written.get("concurrency_limit", {}).get("collision_strategy")
        if written.get("schedules"):
            assert strategy == "CANCEL_NEW"
        elif written.get("triggers"):
            assert strategy == "ENQUEUE"


def test_a_trigger_is_an_automation_that_runs_its_deployment(registered) -> None:
    (written,) = BY_NAME["after-gsm8k"]["triggers"]
    deployment = registered.client.read_deployment_by_name("evaluate/after-gsm8k")
    found = [each for each in registered.client.read_automations() if each.name == written["name"]]
    (automation,) = found
    assert automation.enabled
    assert automation.trigger.expect == set(written["expect"])
    assert automation.trigger.match.model_dump() == written["match"]
    (action,) = automation.actions
    assert isinstance(action, RunDeployment)
    assert action.deployment_id == deployment.id
    assert action.parameters == written["parameters"]


def test_the_demo_needs_no_verifiers(registered, closed, evaluations: Evaluations) -> None:
    flow_run = registered.run("demo/demo", model="deployed", examples=2)
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
