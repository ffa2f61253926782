"""A state hook closes once, whoever calls it, and closes nothing that is alive."""

from typing import Any

import pytest
from prefect.states import Crashed
from support import Evaluations
from tracked import numbers, read_flow_run, rollout, set_state, the_flow_run_of

from prefect_prime.flows import current_run
from prefect_prime.flows.sessions import close_evaluation_of_run
from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server")


def test_a_hook_that_is_called_three_times_closes_once(
    tracked: Any, platform: LocalPlatform, evaluations: Evaluations, name: str
) -> None:
    @tracked()
    def entrypoint() -> None:
        current_run().log_episodes([rollout(1)])
        raise ValueError("fails")

    state = entrypoint(return_state=True)
    (evaluation,) = evaluations.named(name)
    before = evaluations(evaluation["id"])
    written = len([each for each in platform.requests if each.method == "PUT"])
    flow_run = read_flow_run(state.state_details.flow_run_id)
    for _ in range(3):
        close_evaluation_of_run(entrypoint, flow_run, state)

    assert evaluations(evaluation["id"]) == before
    assert len([each for each in platform.requests if each.method == "PUT"]) == written


def test_a_living_run_that_was_marked_crashed_still_completes(
    tracked: Any, evaluations: Evaluations, name: str
) -> None:
    @tracked()
    def entrypoint() -> None:
        run = current_run()
        run.log_episodes([rollout(1)])
        set_state(the_flow_run_of(evaluations(run.id or "")), Crashed())
        run.log_episodes([rollout(2)])

    entrypoint(return_state=True)

    (evaluation,) = evaluations.named(name)
    assert evaluations(evaluation["id"])["status"] == "COMPLETED"
    assert numbers(evaluations.rows(evaluation["id"])) == {1: [1], 2: [1]}


def test_a_run_that_was_taken_for_dead_and_completes_has_that_recorded(
    tracked: Any, platform: LocalPlatform, evaluations: Evaluations, name: str
) -> None:
    @tracked()
    def entrypoint() -> None:
        run = current_run()
        run.log_episodes([rollout(1)])
        with platform.credentials.get_client() as client:
            client.update_evaluation(run.id or "", status="FAILED", error_message="looks dead")
        run.log_episodes([rollout(2)])

    state = entrypoint(return_state=True)

    (evaluation,) = evaluations.named(name)
    after = evaluations(evaluation["id"])
    assert state.is_completed()
    assert (after["status"], after["error_message"]) == ("FAILED", "looks dead")
    assert after["metadata"]["prime_runs"] == {"completed_later": True}
    assert numbers(evaluations.rows(evaluation["id"])) == {1: [1], 2: [1]}
