"""The options of ``eval_flow``, and what they become for one run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.config_source import read_config
from prefect_prime.credentials import Credentials
from prefect_prime.environments import EnvironmentRef
from prefect_prime.errors import ConfigurationError
from prefect_prime.flows.templates import render, render_path
from prefect_prime.gates import Gate
from prefect_prime.tasks import EvaluationSpec
from prefect_prime.transport import segment

OnError = Literal["warn", "raise"]
#: A block document's name, the credentials themselves, or None: from the environment.
CredentialsOption = str | PrimeCredentials | Credentials | None


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """What a person gave to ``eval_flow``; strings are templates over the parameters."""

    environments: Sequence[Any] = ()
    model: str | None = None
    evaluation_name: str | None = None
    framework: str | None = None
    description: str | None = None
    tags: Sequence[str] = ()
    config: Any = None
    credentials: CredentialsOption = None
    expected: str | int | None = None
    evaluation_id: str | None = None
    gates: Sequence[Any] | str = ()
    baseline: str | None = None
    on_error: OnError = "warn"


@dataclass(frozen=True, kw_only=True)
class EvalPlan:
    """One run's evaluation, as it will be opened, and how it is to be run."""

    spec: EvaluationSpec
    credentials: CredentialsOption
    expected: int | None = None
    #: Somebody else's evaluation, which this run logs into.
    evaluation_id: str | None = None
    #: That evaluation was handed to this process, which reports a clean finish.
    hosted: bool = False
    on_error: OnError = "warn"
    gates: Sequence[Gate] = ()
    #: The id of the evaluation to compare with; None: the last one that is comparable.
    baseline: str | None = None
    flow_name: str = ""

    def attached_to(self, evaluation_id: str, *, hosted: bool = False) -> "EvalPlan":
        """The plan of a guest: the evaluation is there, and somebody else's."""
        return replace(self, evaluation_id=evaluation_id, hosted=hosted)

    def inside(self, flow_run_id: UUID) -> "EvalPlan":
        """The plan of an eval that another eval's flow run contains: tagged with that."""
        tags = [*self.spec.tags, f"prefect-parent:{flow_run_id}"]
        return replace(self, spec=replace(self.spec, tags=tags))

    def without_secret(self) -> "EvalPlan":
        """The plan as it may travel: credentials by their block's name, or not at all."""
        given = self.credentials
        named = given.saved_as if isinstance(given, PrimeCredentials) else given
        return replace(self, credentials=named if isinstance(named, str) else None)

    @classmethod
    def untracked(cls, name: str) -> "EvalPlan":
        """The plan of a function that is called outside a flow run."""
        return cls(spec=EvaluationSpec(name=name, environments=[]), credentials=None)


def plan(
    options: EvalOptions, parameters: Mapping[str, Any], flow_name: str, beside: Path | None
) -> EvalPlan:
    """Fill the options in, for a run of a flow; nothing is requested from anybody.

    ``beside`` is the folder of the flow's file, where a relative ``config`` is looked for
    second. Raises ``ConfigurationError`` for the first thing that is wrong.
    """
    if options.on_error not in {"warn", "raise"}:
        raise ConfigurationError(f"on_error={options.on_error!r} is not one of 'warn', 'raise'")

    def fill(name: str) -> Any:
        return render(name, getattr(options, name), parameters)

    evaluation_id = _identity("evaluation_id", options.evaluation_id, parameters)
    listed = _environments(fill("environments"), needed=evaluation_id is None)
    environments = [EnvironmentRef.parse(value) for value in listed]
    model = fill("model")
    first = environments[0].dataset or environments[0].id if environments else evaluation_id
    name = fill("evaluation_name") or "-".join(part for part in (first, model) if part)
    return EvalPlan(
        spec=EvaluationSpec(
            name=name,
            environments=environments,
            model=model,
            framework=fill("framework"),
            description=fill("description"),
            tags=[str(tag) for tag in fill("tags")],
            metadata=_metadata(options.config, parameters, beside),
        ),
        credentials=(
            fill("credentials") if isinstance(options.credentials, str) else options.credentials
        ),
        expected=_expected(fill("expected")),
        evaluation_id=evaluation_id,
        on_error=options.on_error,
        gates=read_gates(options.gates, parameters),
        baseline=_identity("baseline", options.baseline, parameters),
        flow_name=flow_name,
    )


def _identity(option: str, template: str | None, parameters: Mapping[str, Any]) -> str | None:
    # A parameter that is None means that there is none, not one named "None".
    given = {name: "" if value is None else value for name, value in parameters.items()}
    identity: str | None = render(option, template, given) or None
    if identity is not None:
        segment(identity)  # one that can be none is said before anything is requested
    return identity


def read_gates(given: Sequence[Any] | str, parameters: Mapping[str, Any]) -> list[Gate]:
    """Gates as given, or those that a parameter holds: ``gates="{gates}"``."""
    if isinstance(given, str):
        name = given.removeprefix("{").removesuffix("}")
        if given != f"{{{name}}}" or name not in parameters:
            raise ConfigurationError(
                f"gates={given!r} is neither a list of gates nor the name of a parameter in braces"
                f" that holds one (the flow has: {', '.join(parameters) or 'none'})"
            )
        given = parameters[name] or ()
    if isinstance(given, Mapping | Gate):
        given = [given]
    return [Gate.parse(each) for each in given]


def _environments(value: Any, *, needed: bool) -> list[Any]:
    listed = [value] if isinstance(value, str | Mapping) else list(value or ())
    if needed and not listed:
        raise ConfigurationError(
            "an evaluation needs at least one environment: pass environments=['my-env'],"
            " ['owner/my-env'] or [{'id': '...'}]"
        )
    return listed


def _metadata(config: Any, parameters: Mapping[str, Any], beside: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    # A mapping is stored as given: it may well hold braces.
    path = render_path("config", config, parameters) if isinstance(config, str) else config
    return read_config(path, beside)


def _expected(value: Any) -> int | None:
    if value is None or value == "":
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"expected={value!r} is not a number of episodes; it serves for progress only and"
            " may be left out"
        ) from None
