"""A verifiers evaluation's config: the file that its user has, and what is changed for one run.

The file is read as ``vf-eval @ FILE`` reads it, and validated by verifiers' own model, which
also narrows ``[env]`` to the environment's own settings. verifiers is imported when it is
needed: it is the extra ``prefect-prime[verifiers]``.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from prefect_prime.config_source import read_config
from prefect_prime.encoding import decode, encode
from prefect_prime.errors import ConfigurationError

if TYPE_CHECKING:
    from verifiers.v1.configs.cli.eval import EvalConfig

#: Where verifiers would show its dashboard and upload by itself: one flow run, one uploader.
_SWITCHED_OFF: Mapping[str, Any] = {"push": False, "rich": None}


@dataclass(frozen=True)
class LaunchedEval:
    """A file, and the config that it comes to with everything that was changed."""

    path: Path
    #: The evaluation's metadata: the file byte for byte, and what was changed.
    metadata: dict[str, Any]
    config: "EvalConfig"
    #: The run's name, if somebody gave it one.
    name: str | None
    #: An evaluation that a launcher opened, to log into (``run.attach``).
    attach: str | None

    @property
    def environment(self) -> str:
        """What verifiers asks the hub for: the task set, whichever version is installed."""
        taskset: str = self.config.env.taskset.id
        return taskset.partition("@")[0]


def require_verifiers() -> None:
    """Raise ``ConfigurationError`` where verifiers is not installed."""
    try:
        import verifiers.v1  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name not in {"verifiers", "verifiers.v1"}:
            raise
        raise ConfigurationError(
            "a verifiers evaluation needs verifiers 0.4, which is not installed here:"
            " pip install 'prefect-prime[verifiers]'"
        ) from None


def read_eval(
    path: str | Path,
    *,
    model: str | None = None,
    num_rollouts: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    ticket: str | None = None,
) -> LaunchedEval:
    """Read a config; nothing is loaded, made or requested.

    ``overrides`` are settings by their dotted name or nested as in the file; ``model`` and
    ``num_rollouts`` go before them. ``ticket`` takes the random part's place in the name of a
    run that has none, so that a later attempt finds its directory. Raises
    ``ConfigurationError`` for whatever is wrong with any of it.
    """
    require_verifiers()
    from verifiers.v1.configs.cli.eval import EvalConfig  # noqa: PLC0415 - an extra

    path = Path(path)
    metadata = read_config(path)
    settings = _parsed(path, metadata["config_source"]["text"])
    changes = {
        **(overrides or {}),
        **{
            name: value
            for name, value in (("model", model), ("num_rollouts", num_rollouts))
            if value is not None
        },
    }
    if changes:
        metadata["overrides"] = decode(encode(changes))
    for keys, value in _leaves({**changes, **_SWITCHED_OFF}):
        _put(settings, keys, value, EvalConfig)
    run = settings.get("run")
    given = run if isinstance(run, dict) else {}
    attach = given.pop("attach", None)
    name, folder = given.get("name"), given.get("dir")
    config = _validated(EvalConfig, settings, path)
    if not config.env.taskset.id:
        raise ConfigurationError(f"{path} names no task set: [env.taskset] needs an id")
    if config.dry_run:
        raise ConfigurationError(f"{path} asks for a dry run (dry_run), which evaluates nothing")
    if name is None and ticket is not None:
        config.run.name = f"{config.run.name.rpartition('--')[0]}--{ticket}"
        config.run.dir = config.run.name if folder is None else folder
    return LaunchedEval(path, metadata, config, name, attach)


def _parsed(path: Path, text: str) -> dict[str, Any]:
    text = text.removeprefix("\N{BYTE ORDER MARK}")
    try:
        match path.suffix.lower():
            case ".toml":
                parsed: Any = tomllib.loads(text)
            case ".json":
                parsed = json.loads(text)
            case _:
                parsed = None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be parsed: {error}") from None
    if not isinstance(parsed, dict):
        raise ConfigurationError(f"{path} is no .toml or .json file of settings by name")
    return parsed


def _leaves(
    changes: Mapping[str, Any], under: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each value that changes, with its place; a dotted name is a place of its own."""
    for key, value in changes.items():
        keys = (*under, *(str(key).split(".") if not under else [str(key)]))
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, keys)
        else:
            yield keys, value


def _put(settings: dict[str, Any], keys: tuple[str, ...], value: Any, model: Any) -> None:
    """Set one value. A field goes by several names (``num_rollouts``, ``r``): one is left."""
    key, *rest = keys
    names, inner = {key}, None
    for name, field in _fields(model).items():
        known = {name, *(str(each) for each in getattr(field.validation_alias, "choices", ()))}
        if key in known:
            names, inner, key = known, field.annotation, name
    if rest:
        there = next((settings[name] for name in names if name in settings), None)
        inside = dict(there) if isinstance(there, Mapping) else {}
        _put(inside, tuple(rest), value, inner)
        value = inside
    for name in names:
        settings.pop(name, None)
    settings[key] = value


def _fields(model: Any) -> Mapping[str, FieldInfo]:
    """The fields of a model; none of anything else, whose settings go by one name each."""
    if isinstance(model, type) and issubclass(model, BaseModel):
        return model.model_fields
    return {}


def _validated(model: type["EvalConfig"], settings: dict[str, Any], path: Path) -> "EvalConfig":
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        # Without the values: a header may be a key.
        wrong = [
            f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}"
            for each in error.errors(include_input=False, include_url=False)
        ]
        reason = "; ".join(wrong)
    except (ModuleNotFoundError, AttributeError, TypeError, ValueError) as error:
        reason = str(error)  # as verifiers' own command does: an environment that is not installed
    raise ConfigurationError(f"{path} is no config that verifiers takes: {reason}")
