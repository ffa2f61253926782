"""Gates: a flow run that fails because its evaluation is not good enough, and is valid."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.exceptions import FailedRun
from support import Evaluations

from prefect_prime.errors import ConfigurationError
from prefect_prime.flows import Gate, current_run, eval_flow
from prefect_prime.gates import Baseline, judge
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def nightly(platform: LocalPlatform) -> Any:
    """An eval whose rewards, by example, are its parameter; and how often it was run."""
    name = f"gates-{uuid4().hex[:8]}"
    calls: list[int] = []

    def make(**options: Any) -> Any:
        options = {"environments": [name], "evaluation_name": name, **options}

        @eval_flow(name=name, credentials=platform.credentials, **options)
        def nightly(
            rewards: list[float],
            gates: Any = None,  # noqa: ARG001 - the template's
            baseline: str | None = None,  # noqa: ARG001 - same
        ) -> None:
            calls.append(1)
            for number, reward in enumerate(rewards):
                current_run().log_episodes([episode(rewards=reward, example_id=number)])

        return nightly

    make.evaluation_name = name  # type: ignore[attr-defined]
    make.calls = calls  # type: ignore[attr-defined]
    return make


def test_a_gate_that_does_not_hold_fails_the_run_and_not_the_evaluation(
    nightly: Any, evaluations: Evaluations
) -> None:
    flow = nightly(gates=[Gate("avg_reward", minimum=0.6)], retries=2, retry_delay_seconds=30)

    state = flow([1.0, 0.0], return_state=True)

    assert (state.type.name, state.name) == ("FAILED", "Regressed")
    assert state.message == "avg_reward 0.5 is below 0.6, 2 episodes, avg_reward 0.5"
    (evaluation,) = evaluations.named(nightly.evaluation_name)
    assert evaluation["status"] == "COMPLETED"
    assert len(nightly.calls) == 1
    (gate,) = evaluation["metadata"]["prefect"]["gates"]
    assert (gate["verdict"], gate["value"], gate["minimum"]) == ("regressed", 0.5, 0.6)
    with pytest.raises(FailedRun, match=r"below 0\.6"):
        flow([1.0, 0.0])


def test_gates_that_hold_change_nothing(nightly: Any, evaluations: Evaluations) -> None:
    gates = [Gate("avg_reward", minimum=0.5, maximum=0.5), Gate("avg_error", maximum=0.0)]

    state = nightly(gates=gates)([1.0, 0.0], return_state=True)

    assert state.name == "Completed"
    (evaluation,) = evaluations.named(nightly.evaluation_name)
    verdicts = [gate["verdict"] for gate in evaluation["metadata"]["prefect"]["gates"]]
    assert verdicts == ["passed", "passed"]


def test_the_baseline_is_the_last_completed_one_that_is_comparable(
    nightly: Any, evaluations: Evaluations
) -> None:
    gates = [Gate("avg_reward", max_drop=0.05)]
    flow = nightly(gates=gates, model="small")

    first = flow([1.0, 1.0, 1.0, 1.0], return_state=True)
    nightly(gates=gates, model="other")([0.0] * 4, return_state=True)
    within = flow([1.0, 1.0, 1.0, 0.9], return_state=True)
    fell = flow([0.0, 1.0, 1.0, 0.9], return_state=True)

    assert first.name == "Completed"
    assert "there is no evaluation to compare it with" in first.message
    assert within.name == "Completed"
    assert fell.name == "Regressed"
    assert fell.message.startswith("avg_reward fell by 0.25 from 0.975 to 0.725, more than 0.05")
    assert "within the noise: standard error 0.25 over 4 examples" in fell.message
    newest, *_ = evaluations.named(nightly.evaluation_name)
    (gate,) = newest["metadata"]["prefect"]["gates"]
    assert gate["change"]["paired"] is True
    assert gate["change"]["within_noise"] is True
    assert gate["worse"] == [{"example_id": 0, "value": 0.0, "baseline": 1.0}]
    assert gate["baseline_id"] != newest["id"]
    shown = summary_of(newest["metadata"]["prefect"]["flow_run_id"])
    assert "Regressed" in shown.splitlines()[0]
    assert "- avg_reward fell by 0.25" in shown
    assert "?example=0#samples" in shown
    assert gate["baseline"] == pytest.approx(0.975)


def summary_of(flow_run_id: str) -> str:
    """The Markdown artifact of a flow run."""
    with get_client(sync_client=True) as client:
        artifacts = client.read_artifacts(
            artifact_filter=ArtifactFilter(
                flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(flow_run_id)])
            )
        )
    texts = [str(each.data) for each in artifacts if each.type == "markdown"]
    (shown,) = [each for each in texts if each.startswith("# ")]
    return str(shown)


def test_a_baseline_may_be_named_and_gates_may_come_from_parameters(
    nightly: Any, evaluations: Evaluations
) -> None:
    flow = nightly(gates="{gates}", baseline="{baseline}")
    flow([1.0, 1.0])
    (best,) = evaluations.named(nightly.evaluation_name)
    flow([0.5, 0.5])
    gates = [{"metric": "avg_reward", "max_drop": 0.1}]

    to_the_last = flow([0.5, 0.5], gates=gates, return_state=True)
    to_the_best = flow([0.5, 0.5], gates=gates, baseline=best["id"], return_state=True)

    assert (to_the_last.name, to_the_best.name) == ("Completed", "Regressed")
    assert "within the noise" not in to_the_best.message


def test_an_unknown_metric_is_no_pass(nightly: Any) -> None:
    state = nightly(gates=[Gate("pass@1", minimum=0.1)])([1.0], return_state=True)

    assert state.name == "Regressed"
    assert "no metric 'pass@1' (it has: avg_error, avg_reward, reward)" in state.message


def test_untracked_evals_have_gates_too() -> None:
    @eval_flow(environments=["toy"], gates=[Gate("avg_reward", minimum=1.0)])
    def entrypoint() -> None:
        current_run().log_episodes([episode(rewards=0.0, example_id=1)])

    assert entrypoint(return_state=True).name == "Regressed"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"metric": "avg_reward"}, "has no bar"),
        ({"metric": "avg_reward", "minimum": float("nan")}, "not a finite number"),
        ({"metric": "avg_reward", "max_drop": -1}, "below 0"),
        ({"metric": "avg_reward", "minimun": 1}, "is not a gate"),
        ("avg_reward>0.5", "is not a gate"),
    ],
)
def test_a_gate_that_is_none_is_refused_before_anything_is_opened(
    nightly: Any, evaluations: Evaluations, wrong: Any, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        nightly(gates="{gates}")([1.0], gates=[wrong])

    assert evaluations.named(nightly.evaluation_name) == []


def test_a_drop_of_exactly_what_is_allowed_holds() -> None:
    baseline = Baseline("id", "url", {"avg_reward": 0.8}, None)

    (judgement,) = judge([Gate("avg_reward", max_drop=0.1)], {"avg_reward": 0.7}, None, baseline)

    assert judgement.verdict == "passed"
