"""The options of an eval: what they become, and what is said of wrong ones."""

from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from pydantic import BaseModel
from support import Evaluations

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.errors import ConfigurationError, EnvironmentResolutionError
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")


class Sampling(BaseModel):
    temperature: float = 0.5


def test_strings_are_templates_over_the_parameters(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    @eval_flow(
        environments=["{env}"],
        model="{model}",
        evaluation_name="{env}-{model}-{sampling.temperature}",
        framework="verifiers",
        description="{n} episodes",
        tags=["nightly", "of-{model}"],
        config={"kept": "{as given}"},
        expected="{n}",
        credentials=platform.credentials,
    )
    def entrypoint(
        model: str,
        env: str = "gsm8k",
        n: int = 3,
        sampling: Sampling = Sampling(),  # noqa: B008 - as users write it
    ) -> None: ...

    evaluation = evaluations(entrypoint("m-7b").evaluation_id)

    assert evaluation["name"] == "gsm8k-m-7b-0.5"
    assert evaluation["model_name"] == "m-7b"
    assert (evaluation["framework"], evaluation["dataset"]) == ("verifiers", "gsm8k")
    assert evaluation["description"] == "3 episodes"
    assert evaluation["tags"][:2] == ["nightly", "of-m-7b"]
    assert evaluation["tags"][2].startswith("prefect-flow-run:")
    assert evaluation["metadata"]["kept"] == "{as given}"


def test_by_default_the_name_is_the_environment_and_the_model(platform: LocalPlatform) -> None:
    published = platform.publish_environment("ann/maths")

    @eval_flow(environments=["ann/maths"], model="m", credentials=platform.credentials)
    def entrypoint() -> str:
        return current_run().name

    assert published
    assert entrypoint() == "maths-m"


def test_the_config_is_kept_byte_for_byte_from_beside_the_flows_file(
    platform: LocalPlatform,
    evaluations: Evaluations,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    @eval_flow(environments=["toy"], config="eval.example.toml", credentials=platform.credentials)
    def entrypoint() -> None: ...

    monkeypatch.chdir(tmp_path)
    beside = Path(__file__).parent / "eval.example.toml"

    evaluation = evaluations(entrypoint().evaluation_id)

    assert evaluation["metadata"]["config_source"] == {
        "format": "toml",
        "text": beside.read_bytes().decode(),
        "filename": "eval.example.toml",
    }


def test_a_block_is_named_and_loaded_at_the_run(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    known = platform.credentials
    PrimeCredentials(
        api_key=known.api_key, base_url=known.base_url, traces_url=known.traces_url
    ).save("prime-tests", overwrite=True, _sync=True)  # type: ignore[call-arg]  # undeclared

    @eval_flow(environments=["toy"], credentials="prime-tests")
    def entrypoint() -> None:
        current_run().log_episodes([episode(messages=[], rewards=1.0)])

    assert evaluations(entrypoint().evaluation_id)["status"] == "COMPLETED"


def test_the_flow_run_is_tagged_with_its_evaluation(platform: LocalPlatform) -> None:
    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None: ...

    state = entrypoint(return_state=True)

    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(state.state_details.flow_run_id)
    assert set(flow_run.tags) == {"prime", f"prime-eval:{state.result().evaluation_id}"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"environments": ["toy"], "model": "{modle}"}, "no parameter 'modle' .it has: model, n"),
        ({"environments": ["toy"], "model": "{model"}, "model='{model' cannot be filled in"),
        ({"environments": ["toy"], "tags": ["{n.x}"]}, "has no attribute 'x'"),
        ({}, "at least one environment"),
        ({"environments": []}, "at least one environment"),
        ({"environments": ["a/b@1.0"]}, "version_id"),
        ({"environments": ["toy"], "config": "missing.toml"}, "missing.toml"),
        ({"environments": ["toy"], "config": "."}, "directory"),
        ({"environments": ["toy"], "expected": "{model}"}, "not a number of episodes"),
        ({"environments": ["toy"], "on_error": "ignore"}, "'warn', 'raise'"),
        ({"environments": ["toy"], "credentials": "nobody"}, "no Prime Credentials block"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_created(
    options: dict[str, Any], complaint: str, platform: LocalPlatform
) -> None:
    @eval_flow(**{"credentials": platform.credentials, **options})
    def entrypoint(model: str, n: int = 3) -> None:  # noqa: ARG001 - for the templates
        raise AssertionError("the eval must not run")

    before = len(platform.requests)

    with pytest.raises(ConfigurationError, match=complaint):
        entrypoint("m")

    assert len(platform.requests) == before


def test_an_option_that_nobody_has_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigurationError, match="no option 'enviroments'"):
        eval_flow(enviroments=["toy"])(lambda: None)


def test_an_environment_that_the_hub_does_not_know_fails_the_run(platform: LocalPlatform) -> None:
    @eval_flow(environments=["nobody/nothing"], credentials=platform.credentials)
    def entrypoint() -> None:
        raise AssertionError("the eval must not run")

    with pytest.raises(EnvironmentResolutionError, match="nobody/nothing"):
        entrypoint()


def test_without_a_key_the_eval_runs_untracked_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @eval_flow(environments=["toy"])
    def entrypoint() -> None:
        current_run().log_episodes([episode(messages=[], rewards=0.5)])

    result = entrypoint()

    assert (result.evaluation_id, result.status, result.episodes) == (None, "UNTRACKED", 1)
    assert result.summary["avg_reward"] == 0.5
    warnings = [record for record in caplog.records if "not tracked" in record.message]
    assert len(warnings) == 1
