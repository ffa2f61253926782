"""The owner's summary covers what guests with spools of their own have logged."""

from collections import Counter
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from support import Evaluations
from tracked import rollout, run_again, the_flow_run_of

from prefect_prime.flows import current_run, eval_flow
from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server", "account")


@eval_flow(evaluation_id="{to}")
def part(to: str, number: int, reward: float) -> None:  # noqa: ARG001 - the template's
    current_run().log_episodes([rollout(number, reward), rollout(number, reward)])
    current_run().update_summary({"parts": {str(number): reward}})


def test_the_evaluation_covers_its_own_records_and_those_of_guests_elsewhere(
    evaluations: Evaluations,
) -> None:
    @eval_flow(environments=["toy"])
    def whole() -> None:
        run = current_run()
        part(run.id, 1, 1.0)
        part(run.id, 2, 0.5)
        run.log_episodes([rollout(3, 0.0)])
        run.update_summary({"parts": {"3": 0.0}})

    state = whole(return_state=True)

    result = state.result()
    evaluation = evaluations(result.evaluation_id)
    assert (result.episodes, result.summary["avg_reward"]) == (5, 0.6)
    assert state.message == "5 episodes, avg_reward 0.6"
    assert evaluation["metrics"]["avg_reward"] == 0.6
    assert evaluation["metrics"]["parts"] == {"1": 1.0, "2": 0.5, "3": 0.0}
    assert evaluation["metrics"]["prime_runs"] == {"traces_episodes_written": 5}
    provenance = evaluation["metadata"]["prefect"]
    assert provenance["guests_elsewhere"] == 2
    assert provenance["records"]["samples"]["stored"] == 5


def test_prefect_s_pages_do_not_show_what_a_guest_leaves(evaluations: Evaluations) -> None:
    @eval_flow(environments=["toy"])
    def whole() -> None:
        part(current_run().id, 1, 1.0)

    flow_run = the_flow_run_of(evaluations(whole().evaluation_id))

    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=wanted)
    assert [each.key for each in found if each.type == "result"] == [None]


def test_a_guest_that_failed_and_is_run_again_goes_on_and_counts_once(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    seen: list[Counter[Any]] = []

    @eval_flow(evaluation_id="{to}")
    def failing(to: str) -> None:  # noqa: ARG001 - the template's
        run = current_run()
        seen.append(run.logged)
        for number in run.remaining([1, 2, 3], key=int):
            run.log_episodes([rollout(number)])
            if number == 2 and len(seen) == 1:
                raise ValueError("in the middle")

    @eval_flow(environments=["toy"])
    def whole() -> None:
        state = failing(current_run().id, return_state=True)
        assert state.is_failed()
        assert run_again(failing, state.state_details.flow_run_id).is_completed()

    result = whole()

    assert seen == [Counter(), Counter({1: 1, 2: 1})]
    assert [row["example_id"] for row in evaluations.rows(result.evaluation_id)] == [1, 2, 3]
    assert result.episodes == 3
    assert platform.url


def test_the_owner_s_ending_elsewhere_counts_them_too(evaluations: Evaluations, name: str) -> None:
    @eval_flow(environments=["toy"], evaluation_name=name)
    def whole() -> None:
        part(current_run().id, 1, 0.5)
        raise ValueError("fails")

    whole(return_state=True)

    evaluation = evaluations.only(name)
    assert evaluation["status"] == "FAILED"
    assert evaluation["metrics"]["avg_reward"] == 0.5
