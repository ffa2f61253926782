"""A verifiers evaluation from the file that its user has, as a tracked flow."""

import json
from pathlib import Path
from typing import Any

import prime_runs.metrics
import pytest
from prime_runs.projection import build_samples
from support import Evaluations, canonical, episodes_of
from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.episode import WireEpisode

from prefect_prime.errors import ConfigurationError
from prefect_prime.flows import EvalResult
from prefect_prime.flows.evaluate import evaluate
from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server")

TWO_AGENTS = """
[env]
id = "toy-multi-env"
mode = "{mode}"
[env.solver.runtime]
type = "subprocess"
[env.critic.runtime]
type = "subprocess"
"""


def assert_as_the_reference(
    evaluations: Evaluations, result: EvalResult, directory: Path
) -> list[dict[str, Any]]:
    """Rows and summary are what prime-runs makes of the episodes in the run's directory."""
    episodes = [WireEpisode.model_validate(each) for each in episodes_of(directory)]
    evaluation = evaluations(result.evaluation_id or "")
    rows = evaluations.rows(evaluation["id"])
    assert canonical(rows) == canonical(json.loads(json.dumps(build_samples(episodes))))
    expected: dict[str, Any] = dict(prime_runs.metrics.from_episodes(episodes))
    metrics = evaluation["metrics"]
    assert metrics["avg_metrics"] == pytest.approx(expected["avg_metrics"])
    assert metrics["avg_reward"] == pytest.approx(expected["avg_reward"])
    assert metrics["avg_error"] == pytest.approx(expected["avg_error"])
    return rows


def test_one_agent_with_errors_is_what_the_reference_makes_of_it(
    write: Any, platform: LocalPlatform, evaluations: Evaluations
) -> None:
    before = len(platform.requests)
    config = write(["add", "raise", "add", "refused"])

    result = evaluate(str(config))

    assert (result.status, result.episodes, result.rejected) == ("COMPLETED", 8, 0)
    rows = assert_as_the_reference(evaluations, result, Path("outputs/toy"))
    assert len(rows) == 8
    assert result.summary["avg_error"] == 0.5
    evaluation = evaluations(result.evaluation_id or "")
    assert (evaluation["name"], evaluation["model_name"]) == ("toy", "fake-model")
    assert (evaluation["framework"], evaluation["dataset"]) == ("verifiers", "toy-eval")
    metadata = evaluation["metadata"]
    assert metadata["config_source"]["text"].encode() == config.read_bytes()
    assert (metadata["num_examples"], metadata["rollouts_per_example"]) == (4, 2)
    # One producer alone: verifiers' own upload is off, whatever the file says.
    opened = [r for r in platform.requests[before:] if r.path.endswith("/evaluations/")]
    assert [r.method for r in opened] == ["POST"]


def test_several_agents_are_what_the_reference_makes_of_them(
    write: Any, evaluations: Evaluations
) -> None:
    config = write(["add", "add"], extra=TWO_AGENTS.format(mode="ok"))

    result = evaluate(str(config))

    assert [len(each["traces"]) for each in episodes_of(Path("outputs/toy"))] == [2] * 4
    assert_as_the_reference(evaluations, result, Path("outputs/toy"))


@pytest.mark.parametrize(("mode", "rows"), [("half", 2), ("empty", 0)])
def test_an_environment_that_fails_costs_its_episodes_not_the_eval(
    mode: str, rows: int, write: Any, evaluations: Evaluations
) -> None:
    config = write(["add"], extra=TWO_AGENTS.format(mode=mode))

    result = evaluate(str(config))

    assert (result.status, result.episodes) == ("COMPLETED", 2)
    assert result.summary["avg_error"] == 1.0
    assert len(assert_as_the_reference(evaluations, result, Path("outputs/toy"))) == rows


def test_what_the_directory_cannot_hold_costs_that_episode_alone(
    write: Any, evaluations: Evaluations, caplog: pytest.LogCaptureFixture
) -> None:
    result = evaluate(str(write(["add", "bytes", "nan"], rollouts=1)))

    assert (result.status, result.episodes, result.rejected) == ("COMPLETED", 2, 1)
    assert len(evaluations.rows(result.evaluation_id or "")) == 2
    assert "is not in the run's directory" in caplog.text


def test_its_directory_is_one_of_verifiers(write: Any) -> None:
    config = write(["add"])

    result = evaluate(str(config))

    directory = Path("outputs/toy")
    assert (directory / "configs/eval.toml").read_bytes() == config.read_bytes()
    resolved = (directory / "configs/resolved/eval.json").read_text()
    saved = EvalConfig.model_validate_json(resolved)
    assert (saved.model, saved.num_rollouts, saved.push) == ("fake-model", 2, False)
    assert {each["run"]["id"] for each in episodes_of(directory)} == {result.evaluation_id}
    assert (directory / "logs/latest/eval.log").is_file()
    assert not (directory / "lease").exists()


def test_settings_of_one_run_go_before_the_file(
    write: Any, model: Any, evaluations: Evaluations
) -> None:
    result = evaluate(
        str(write(["add"] * 6, name=None)),
        model="another",
        num_rollouts=1,
        overrides={"select.limit": 4, "max_concurrent": 1, "run": {"name": "mine"}},
    )

    evaluation = evaluations(result.evaluation_id or "")
    assert (evaluation["name"], evaluation["model_name"]) == ("mine", "another")
    assert evaluation["metadata"]["overrides"] == {
        "model": "another",
        "num_rollouts": 1,
        "select.limit": 4,
        "max_concurrent": 1,
        "run": {"name": "mine"},
    }
    assert result.episodes == model.calls == 4
    assert model.most_at_once == 1


def test_gates_are_a_parameter_and_compare_with_the_last_one_of_the_same_model(
    write: Any, evaluations: Evaluations
) -> None:
    gates = [{"metric": "avg_reward", "minimum": 0.4, "max_drop": 0.1}]
    write(["add", "add"], name=None, rollouts=1)

    first = evaluate("eval.toml", model="gated", gates=gates)
    write(["add", "refused"], name=None, rollouts=1)
    other = evaluate("eval.toml", model="other", gates=gates)
    worse = evaluate("eval.toml", model="gated", gates=gates, return_state=True)

    assert first.summary["avg_reward"] == 1.0
    assert other.summary["avg_reward"] == 0.5
    assert (worse.type.value, worse.name) == ("FAILED", "Regressed")
    (regressed, before) = evaluations.named("toy-eval-gated")
    provenance = evaluations(regressed["id"])["metadata"]["prefect"]
    assert provenance["compared_by"]["flow"] == "evaluate"
    (judged,) = provenance["gates"]
    assert (judged["value"], judged["baseline_id"]) == (0.5, before["id"])


def test_a_gate_that_is_none_costs_no_evaluation(write: Any, evaluations: Evaluations) -> None:
    config = str(write(["add"], name="bad-gate"))

    state = evaluate(config, gates=[{"metric": "avg_reward", "min": 0.5}], return_state=True)

    assert "is not a gate" in (state.message or "")
    assert not evaluations.named("bad-gate")


def test_a_run_without_a_name_has_a_directory_of_its_own(write: Any) -> None:
    config = str(write(["add"], name=None, rollouts=1))

    evaluate(config)
    result = evaluate(config)

    assert result.episodes == 1
    assert len(list(Path("outputs").glob("toy-eval--fake-model--*/traces.jsonl"))) == 2


# -- whose directory is it -----------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "already contains results"),
        ({"model": "another"}, "differs in model"),
        ({"num_rollouts": 3}, "differs in num_rollouts"),
        ({"overrides": {"sampling.temperature": 1.0, "resume": True}}, "differs in sampling"),
        ({"overrides": {"run.dir": ".", "clean": True}}, "a child of output_dir"),
    ],
    ids=["finished", "model", "rollouts", "resumed", "cleaned"],
)
def test_a_directory_of_other_results_is_refused_before_anything_is_opened(
    changes: dict[str, Any], reason: str, write: Any, platform: LocalPlatform
) -> None:
    config = str(write(["add"]))
    evaluate(config)
    kept = Path("outputs/toy/traces.jsonl").read_bytes()
    before = len(platform.requests)

    with pytest.raises(ConfigurationError, match=reason):
        evaluate(config, **changes)

    assert Path("outputs/toy/traces.jsonl").read_bytes() == kept
    assert platform.requests[before:] == []


def test_a_cleaned_directory_is_begun_anew(write: Any, evaluations: Evaluations) -> None:
    config = str(write(["add"]))
    evaluate(config)

    result = evaluate(config, model="another", overrides={"clean": True})

    assert result.episodes == 2
    assert_as_the_reference(evaluations, result, Path("outputs/toy"))


def test_resumed_it_runs_again_what_ended_with_an_error(
    write: Any, model: Any, evaluations: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = str(write(["add", "flaky"]))
    first = evaluate(config)
    assert first.summary["avg_error"] == 0.5
    monkeypatch.setenv("TOY_FIXED", "1")
    calls = model.calls

    result = evaluate(config, overrides={"resume": True})

    assert model.calls - calls == 2
    assert (result.episodes, result.summary["avg_error"]) == (4, 0.0)
    assert result.evaluation_id != first.evaluation_id
    assert_as_the_reference(evaluations, result, Path("outputs/toy"))


# -- what is wrong is said ------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ("[env.agent.runtime]\ntype = 'nowhere'", "env.agent.runtime"),
        ("[env]\nid = 'no-such-env'", "no-such-env"),
        ("[env", "cannot be parsed"),
    ],
)
def test_a_config_that_verifiers_refuses_is_refused_with_its_reason(
    extra: str, reason: str, write: Any, platform: LocalPlatform
) -> None:
    before = len(platform.requests)
    with pytest.raises(ConfigurationError, match=reason):
        evaluate(str(write(["add"], extra=extra)))
    assert platform.requests[before:] == []


def test_a_refusal_never_repeats_a_value(write: Any) -> None:
    config = write(["add"], extra="[client.headers]\nauthorization = ['a-secret']")
    text = config.read_text().replace("[client]", "[client.none]")
    config.write_text(text)

    with pytest.raises(ConfigurationError) as refused:
        evaluate(str(config))

    assert "a-secret" not in str(refused.value)


def test_without_verifiers_it_says_how_to_install_it(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "verifiers.v1", None)

    with pytest.raises(ConfigurationError, match=r"pip install 'prefect-prime\[verifiers\]'"):
        evaluate(str(write(["add"])))


def test_it_is_deployable_by_its_module() -> None:
    deployment: Any = evaluate.to_deployment("nightly", parameters={"config": "eval.toml"})

    assert evaluate._entrypoint == "prefect_prime.flows.evaluate:evaluate"
    assert deployment.parameters == {"config": "eval.toml"}
    assert evaluate.parameters.required == ["config"]
