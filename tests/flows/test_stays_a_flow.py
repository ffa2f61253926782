"""A decorated function stays a real Prefect flow."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from prefect import Flow, flow, task
from prefect.client.orchestration import get_client
from prefect.exceptions import ParameterTypeError
from prefect.utilities.hashing import file_hash
from pydantic import BaseModel

from prefect_prime.errors import RunFinishedError
from prefect_prime.flows import EvalResult, EvalRun, current_run, eval_flow
from prefect_prime.flows.sessions import close_evaluation_of_run
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")


class Sampling(BaseModel):
    """Resolvable from this module alone: annotations here are strings."""

    temperature: float = 0.5


@eval_flow(environments=["toy"], name="Nightly", flow_run_name="toy-{n}")
def nightly(sampling: Sampling, n: int = 3) -> int:
    """Evaluate the checkpoint of the day."""
    assert isinstance(sampling, Sampling)
    return n


def test_it_has_its_own_name_description_version_and_entrypoint() -> None:
    assert isinstance(nightly, Flow)
    assert (nightly.name, nightly.description) == ("Nightly", "Evaluate the checkpoint of the day.")
    assert nightly.version == file_hash(__file__)
    assert (nightly.isasync, nightly.isgenerator) == (False, False)


def test_its_parameter_schema_is_the_functions() -> None:
    schema = nightly.parameters
    assert list(schema.properties) == ["sampling", "n"]
    assert schema.required == ["sampling"]
    assert "Sampling" in schema.definitions


def test_parameters_are_validated_and_coerced() -> None:
    assert nightly({"temperature": 1}, n="4") == 4
    with pytest.raises(ParameterTypeError):
        nightly({"temperature": "hot"})


def test_the_flow_run_is_named_by_its_template() -> None:
    state = nightly(Sampling(), n=5, return_state=True)
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(state.state_details.flow_run_id).name == "toy-5"


def test_it_becomes_a_deployment() -> None:
    deployment = nightly.to_deployment("nightly", cron="0 3 * * *", parameters={"n": 9})
    assert deployment.entrypoint
    assert deployment.entrypoint.endswith(":nightly")
    assert deployment.parameters == {"n": 9}


def test_with_options_keeps_the_evaluation_and_its_hooks(platform: LocalPlatform) -> None:
    seen: list[str] = []

    def mine(flow: Any, flow_run: Any, state: Any) -> None:  # noqa: ARG001 - a state hook
        seen.append(state.name)

    other = nightly.with_options(
        name="Other", on_completion=[mine], credentials=platform.credentials, model="m-{n}"
    )
    state = other(Sampling(), n=6, return_state=True)

    assert type(other) is type(nightly)
    assert (other.name, nightly.name) == ("Other", "Nightly")
    assert other.version == nightly.version
    assert other.plan({"n": 6}).spec.model == "m-6"
    assert nightly.plan({"n": 6}).spec.model is None
    assert other.on_completion_hooks == [close_evaluation_of_run, mine]
    assert other.on_failure_hooks == [close_evaluation_of_run]
    assert (state.result(), seen) == (6, ["Completed"])


def test_it_survives_cloudpickle() -> None:
    copied = cloudpickle.loads(cloudpickle.dumps(nightly))
    assert type(copied) is type(nightly)
    assert copied.plan({"n": 6}).spec.name == "toy"
    assert copied(Sampling(), n=7) == 7


def test_it_is_loaded_from_its_file(tmp_path: Path, platform: LocalPlatform) -> None:
    source = tmp_path / "my_eval.py"
    source.write_text(
        "from __future__ import annotations\n"
        "from prefect_prime.flows import eval_flow\n"
        "@eval_flow(environments=['toy'])\n"
        "def evaluate(n: int = 3) -> int:\n"
        "    return n\n"
    )
    loaded: Any = Flow.from_source(str(tmp_path), "my_eval.py:evaluate")
    assert loaded._entrypoint == "my_eval.py:evaluate"
    assert loaded.with_options(credentials=platform.credentials)(n=8) == 8


def test_methods_can_be_evals(platform: LocalPlatform) -> None:
    class Suite:
        bar = 0.5

        @eval_flow(environments=["toy"], credentials=platform.credentials)
        def instance(self, n: int) -> float:
            return n + self.bar

        @eval_flow(environments=["toy"], credentials=platform.credentials)
        @staticmethod
        def static(n: int) -> int:
            return n

    assert Suite().instance(1) == 1.5
    assert Suite.static(2) == 2


def test_called_past_prefect_it_is_the_function_with_an_untracked_run() -> None:
    @eval_flow(environments=["toy"])
    def entrypoint() -> None:
        current_run().log_episodes([episode(messages=[], rewards=1.0)])

    result: EvalResult = entrypoint.fn()

    assert (result.status, result.episodes) == ("UNTRACKED", 1)


def test_logging_from_tasks_of_the_flow_works(platform: LocalPlatform) -> None:
    @task
    def rollout(number: int) -> None:
        current_run().log_episodes([episode(messages=[], rewards=1.0, example_id=number)])

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        rollout.map(range(10)).wait()

    assert entrypoint().episodes == 10


def test_a_nested_eval_has_its_own_evaluation(platform: LocalPlatform) -> None:
    @eval_flow(environments=["inner"], credentials=platform.credentials)
    def inner() -> None:
        current_run().log_episodes([episode(messages=[], rewards=0.0)])

    @eval_flow(environments=["outer"], credentials=platform.credentials)
    def outer() -> EvalResult:
        current_run().log_episodes([episode(messages=[], rewards=1.0)])
        nested: EvalResult = inner()
        assert current_run().name == "outer"
        return nested

    nested = outer()

    assert (nested.episodes, nested.summary["avg_reward"]) == (1, 0.0)


def test_after_the_entrypoint_has_ended_nothing_can_be_logged(platform: LocalPlatform) -> None:
    kept: list[EvalRun] = []

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        kept.append(current_run())

    entrypoint()

    with pytest.raises(RunFinishedError, match="after its entrypoint had"):
        kept[0].log_episodes([episode(messages=[], rewards=1.0)])


def test_a_plain_flow_may_call_it(platform: LocalPlatform) -> None:
    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None: ...

    @flow
    def parent() -> Any:
        return entrypoint()

    result = parent()
    assert pickle.loads(pickle.dumps(result)) == result  # noqa: S301 - our own
    assert result["status"] == "COMPLETED"
    assert sys.modules["prefect_prime.flows"]
