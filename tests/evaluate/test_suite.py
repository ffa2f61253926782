"""Several evaluations in one flow: one each, one table, and none takes the others with it."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterType,
)
from prefect.client.schemas.objects import State
from prefect.flow_engine import run_flow
from prefect.states import Scheduled
from support import Evaluations, episodes_of

from prefect_prime.flows.suite import main, suite

pytestmark = pytest.mark.usefixtures("prefect_server")


def table_of(flow_run_id: UUID) -> list[dict[str, Any]]:
    with get_client(sync_client=True) as client:
        (artifact,) = client.read_artifacts(
            artifact_filter=ArtifactFilter(
                flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]),
                type=ArtifactFilterType(any_=["table"]),
            )
        )
    rows: list[dict[str, Any]] = json.loads(str(artifact.data))
    return rows


def test_each_config_with_each_model_is_an_evaluation_of_its_own(
    write: Any, evaluations: Evaluations, tmp_path: Path
) -> None:
    first = write(["add"], rollouts=1).rename(tmp_path / "first.toml")
    second = write(["add", "raise"], name=None, rollouts=1)

    state = suite([str(first), str(second)], models=["a/one", "two"], return_state=True)

    assert state.is_completed()
    rows = table_of(state.state_details.flow_run_id)
    assert rows == state.result()
    assert [(row["model"], row["status"], row["episodes"]) for row in rows] == [
        ("a/one", "COMPLETED", 1),
        ("two", "COMPLETED", 1),
        ("a/one", "COMPLETED", 2),
        ("two", "COMPLETED", 2),
    ]
    assert [row["avg_error"] for row in rows] == [0.0, 0.0, 0.5, 0.5]
    names = set()
    for row in rows:
        evaluation = evaluations(row["evaluation"].rpartition("/")[2])
        names.add(evaluation["name"])
        assert evaluation["model_name"] == row["model"]
        assert f"prefect-parent:{state.state_details.flow_run_id}" in evaluation["tags"]
        with get_client(sync_client=True) as client:
            flow_run = client.read_flow_run(evaluation["metadata"]["prefect"]["flow_run_id"])
        assert f"prefect-parent:{state.state_details.flow_run_id}" in flow_run.tags
    assert names == {"toy--a--one", "toy--two", "toy-eval-a/one", "toy-eval-two"}


def test_one_that_fails_does_not_take_the_others_with_it(write: Any, tmp_path: Path) -> None:
    broken = write(["add"], extra="[env]\nid = 'no-such-env'").rename(tmp_path / "broken.toml")
    good = write(["add"], rollouts=1)

    state = suite([str(broken), "missing.toml", str(good)], return_state=True)

    assert state.is_failed()
    assert "2 of 3 evaluations failed" in (state.message or "")
    rows = table_of(state.state_details.flow_run_id)
    assert [row["status"] for row in rows] == ["Failed", "Failed", "COMPLETED"]
    assert "no-such-env" in rows[0]["reason"]
    assert "does not exist" in rows[1]["reason"]
    assert rows[2]["reason"] is None


def test_run_again_it_starts_only_what_did_not_complete(
    write: Any, model: Any, tmp_path: Path
) -> None:
    good = write(["add"], name=None, rollouts=1).rename(tmp_path / "good.toml")
    late = tmp_path / "late.toml"
    configs = [str(good), str(late)]
    first = suite(configs, return_state=True)
    assert first.is_failed()
    flow_run_id = first.state_details.flow_run_id
    assert isinstance(flow_run_id, UUID)
    write(["add", "add"], name=None, rollouts=1).rename(late)
    calls = model.calls

    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run_id, Scheduled(name="AwaitingRetry"), force=True)
        flow_run = client.read_flow_run(flow_run_id)
    again: State[Any] = run_flow(
        suite, flow_run=flow_run, parameters={"configs": configs}, return_type="state"
    )

    assert again.is_completed(), again.message
    assert [row["episodes"] for row in again.result()] == [1, 2]
    assert model.calls - calls == 2


def test_the_command_prints_a_line_for_each(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(write(["add"], rollouts=1))

    assert main([config, "--model", "one", "--model", "two"]) == 0
    output = capsys.readouterr().out
    assert "COMPLETED: toy-eval with one, 1 episode(s), avg_reward 1," in output
    assert "COMPLETED: toy-eval with two, 1 episode(s), avg_reward 1," in output
    assert len(episodes_of(Path("outputs/toy--one"))) == 1

    assert main([config, "missing.toml", "--model", "one"]) == 1
    assert "1 of 2 evaluations failed" in capsys.readouterr().err
