"""What could not be sent or closed in time is sent and closed later, as it would have been."""

from datetime import datetime

import pytest
from faulty_proxy import Fault, FaultyProxy, healthy
from left_behind import assert_whole, log_three, no_samples, reconciled
from support import Evaluations, account, wait_until
from tracked import read_flow_run, run_again

from prefect_prime.flows import current_run, eval_flow
from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server", "account")


def test_an_offline_run_is_sent_later_as_the_evaluation_it_would_have_been(
    platform: LocalPlatform, evaluations: Evaluations, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @eval_flow(
        environments=["toy"],
        model="{model}",
        evaluation_name=name + "-{model}",
        tags=["nightly"],
        config={"n": 3},
    )
    def entrypoint(model: str = "solver") -> None:
        log_three(name)
        current_run().update_summary({"avg_metrics": {"pass@1": 0.5}})
        if model == "broken":
            raise ValueError("the model is gone")

    with monkeypatch.context() as offline:
        for variable in account(platform.credentials):
            offline.delenv(variable)
        offline.setenv("PRIME_RUNS_MODE", "offline")
        states = [entrypoint(return_state=True), entrypoint("broken", return_state=True)]
    assert evaluations.named(f"{name}-solver") == []

    reconciled(name)

    for model, state, status in zip(
        ("solver", "broken"), states, ("COMPLETED", "FAILED"), strict=True
    ):
        evaluation = evaluations.only(f"{name}-{model}")
        assert evaluation["status"] == status
        assert evaluation["model_name"] == model
        assert "nightly" in evaluation["tags"]
        assert evaluation["metadata"]["n"] == 3
        assert evaluation["metrics"]["avg_reward"] == 1.0
        assert evaluation["metrics"]["avg_metrics"]["pass@1"] == 0.5
        flow_run = read_flow_run(state.state_details.flow_run_id)
        origin = evaluation["metadata"]["prefect"]
        assert datetime.fromisoformat(origin["started_at"]) == flow_run.start_time
        assert datetime.fromisoformat(origin["ended_at"]) == flow_run.end_time
        assert origin["flow_run_id"] == str(flow_run.id)
        assert_whole(platform, evaluations, f"{name}-{model}")
    assert evaluation["error_message"].endswith("the model is gone")


def test_a_completed_run_that_did_not_drain_in_time_is_finished(
    platform: LocalPlatform, evaluations: Evaluations, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @eval_flow(environments=["toy"], evaluation_name=name)
    def entrypoint() -> None:
        log_three(name)

    with FaultyProxy(platform, no_samples) as proxy:
        monkeypatch.setenv("PRIME_API_BASE_URL", proxy.url)
        monkeypatch.setenv("PREFECT_PRIME_DRAIN_TIMEOUT", "0")
        state = entrypoint(return_state=True)
        assert "3 still to be sent to samples" in state.message
        assert evaluations.only(name)["status"] == "RUNNING"
        proxy.decide = healthy

        assert reconciled(name)[0]["status"] == "COMPLETED"

    assert_whole(platform, evaluations, name)


def test_a_run_whose_last_upload_hangs_is_alive_until_it_is_over(
    platform: LocalPlatform, evaluations: Evaluations, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @eval_flow(environments=["toy"], evaluation_name=name)
    def entrypoint() -> None:
        log_three(name)

    def hang(_method: str, path: str) -> Fault | None:
        return "hang before" if path.endswith("/traces") else None

    with FaultyProxy(platform, hang) as proxy:
        monkeypatch.setenv("PRIME_API_BASE_URL", proxy.url)
        monkeypatch.setenv("PRIME_TRACES_URL", proxy.url)
        monkeypatch.setenv("PREFECT_PRIME_DRAIN_TIMEOUT", "0")
        entrypoint()
        assert reconciled(name) == []
        proxy.decide = healthy
        proxy.let_go()

        found = wait_until(lambda: reconciled(name))

    assert found[0]["status"] == "COMPLETED"
    assert_whole(platform, evaluations, name)


def no_closing(method: str, _path: str) -> Fault | None:
    return "502 before" if method == "PUT" else None


@pytest.mark.parametrize("then", ["reconciled", "run again"])
def test_an_ending_that_the_platform_did_not_take_stands_until_another_attempt(
    then: str,
    platform: LocalPlatform,
    evaluations: Evaluations,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = [True]

    @eval_flow(environments=["toy"], evaluation_name=name)
    def entrypoint() -> None:
        if broken[0]:
            log_three(name)
            raise ValueError("the model is gone")

    with FaultyProxy(platform, no_closing) as proxy:
        monkeypatch.setenv("PRIME_API_BASE_URL", proxy.url)
        state = entrypoint(return_state=True)
        assert evaluations.only(name)["status"] == "RUNNING"
        proxy.decide, broken[0] = healthy, False

        if then == "reconciled":
            assert reconciled(name)[0]["status"] == "FAILED"
            assert evaluations.only(name)["error_message"].endswith("the model is gone")
        else:
            run_again(entrypoint, state.state_details.flow_run_id)
            assert evaluations.only(name)["status"] == "COMPLETED"

    assert_whole(platform, evaluations, name)
