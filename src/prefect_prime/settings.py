"""What the environment and ``~/.prime/config.json`` say; nothing is read at import.

Per field, the environment wins over the config file, which wins over the default. A
blank variable counts as unset, but for ``PRIME_TEAM_ID``, where blank means no team.
A value that cannot be meant raises ConfigurationError with the variable's name. The
config file belongs to other tools: one that cannot be read is warned about once and
treated as absent. No ``.env`` file is read.
"""

import json
import logging
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from prefect_prime.errors import ConfigurationError
from prefect_prime.fields import (
    DEFAULT_BASE_URL,
    DEFAULT_FRONTEND_URL,
    ApiKey,
    OptionalUrl,
    TeamId,
    Url,
    problems,
)

logger = logging.getLogger(__name__)

Mode = Literal["online", "offline", "disabled"]
Sinks = Literal["traces,samples", "traces", "samples", "auto"]

#: Field -> the variables that set it, the first one set wins.
VARIABLES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "api_key": ("PRIME_API_KEY",),
        "team_id": ("PRIME_TEAM_ID",),
        "base_url": ("PRIME_API_BASE_URL", "PRIME_BASE_URL"),
        "frontend_url": ("PRIME_FRONTEND_URL",),
        "traces_url": ("PRIME_TRACES_URL",),
        "mode": ("PRIME_RUNS_MODE",),
        "traces_opt_out": ("PRIME_TRACES_OPT_OUT",),
        "sinks": ("PREFECT_PRIME_SINKS",),
        "spool_dir": ("PREFECT_PRIME_SPOOL_DIR",),
        "segment_bytes": ("PREFECT_PRIME_SEGMENT_BYTES",),
        "segment_age": ("PREFECT_PRIME_SEGMENT_AGE",),
        "uploads_in_flight": ("PREFECT_PRIME_UPLOADS_IN_FLIGHT",),
        "drain_timeout": ("PREFECT_PRIME_DRAIN_TIMEOUT",),
        "spool_fsync": ("PREFECT_PRIME_SPOOL_FSYNC",),
    }
)
#: Fields that ``~/.prime/config.json`` may hold, under the same names.
CONFIG_FILE_KEYS: Final = frozenset(
    {"api_key", "team_id", "base_url", "frontend_url", "traces_url", "traces_opt_out"}
)
#: What a URL hides a password or a token behind: such a value is not shown.
_HIDING = frozenset("@?#")
#: Where a blank variable is an answer of its own.
_BLANK_IS_A_VALUE = frozenset({"team_id"})

#: A request of Prime Traces holds 256 MiB; the line that fills a segment may hold 64.
MAX_SEGMENT_BYTES = (256 - 64) * 1024 * 1024
_DAY = 86_400.0
_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")


def config_file() -> Path:
    """``~/.prime/config.json`` of the HOME of this moment."""
    return Path.home() / ".prime" / "config.json"


def _default_spool_dir() -> Path:
    return Path.home() / ".prefect-prime" / "spool"


def _comma_list(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    names = sorted({name.strip().lower() for name in value.split(",")}, reverse=True)
    return ",".join(name for name in names if name)


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise ValueError("begins with ~ and there is no such home directory") from None


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _switch(value: Any) -> Any:
    word = _lower(value)
    if isinstance(value, bool):
        return value
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"should be one of {', '.join(_TRUE)} or one of {', '.join(_FALSE)}")


class Settings(BaseSettings):
    """The settings of this moment; see :func:`load_settings`. ``repr`` shows no key."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    api_key: ApiKey | None = None
    team_id: TeamId = None
    base_url: Url = DEFAULT_BASE_URL
    frontend_url: Url = DEFAULT_FRONTEND_URL
    traces_url: OptionalUrl = None
    #: ``offline``: everything waits in the spool; ``disabled``: nothing is tracked.
    mode: Annotated[Mode, BeforeValidator(_lower)] = "online"
    #: Traces are not sent, samples are.
    traces_opt_out: Annotated[bool, BeforeValidator(_switch)] = False
    #: Where records go; ``auto``: samples only where traces are not enabled.
    sinks: Annotated[Sinks, BeforeValidator(_comma_list)] = "traces,samples"
    spool_dir: Annotated[Path, AfterValidator(_absolute)] = Field(
        default_factory=_default_spool_dir
    )
    #: Bytes after which a segment closes.
    segment_bytes: Annotated[int, Field(gt=0, le=MAX_SEGMENT_BYTES)] = 8 * 1024 * 1024
    #: Seconds after which a segment closes.
    segment_age: Annotated[float, Field(gt=0, le=_DAY, allow_inf_nan=False)] = 10.0
    #: Upload tasks at the same time.
    uploads_in_flight: Annotated[int, Field(gt=0, le=64)] = 4
    #: Whether each record is forced to the disk: it then survives the machine's death too.
    spool_fsync: Annotated[bool, BeforeValidator(_lower)] = False
    #: Seconds that the flow's end waits for its uploads.
    drain_timeout: Annotated[float, Field(ge=0, le=_DAY, allow_inf_nan=False)] = 300.0

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings' signature
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - same
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the config file."""
        return init_settings, _Environment(settings_cls), _ConfigFile(settings_cls)


class _Environment(PydanticBaseSettingsSource):
    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002 - pydantic-settings' signature
        variable = _variable_of(field_name)
        return (None if variable is None else os.environ[variable]), field_name, False

    def __call__(self) -> dict[str, Any]:
        fields = self.settings_cls.model_fields
        set_here = (name for name in fields if _variable_of(name) is not None)
        return {name: self.get_field_value(fields[name], name)[0] for name in set_here}


class _ConfigFile(PydanticBaseSettingsSource):
    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        self._content = read_config_file()

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002 - pydantic-settings' signature
        return self._content.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return _set_in_file(self._content)


def load_settings() -> Settings:
    """The settings of this moment. ConfigurationError names what is wrong and where."""
    try:
        return Settings()
    except ValidationError as exc:
        # Raised below, outside: a ValidationError carries the refused value itself.
        complaints = [_complaint(field.split(".")[0], why) for field, why in problems(exc)]
    except RuntimeError:
        complaints = ["there is no home directory: set HOME or PREFECT_PRIME_SPOOL_DIR"]
    raise ConfigurationError("; ".join(dict.fromkeys(complaints)))


def source_of(field: str) -> str:
    """Where a field of the settings has its value from: a variable, the config file, default."""
    if (variable := _variable_of(field)) is not None:
        return variable
    return str(config_file()) if field in _set_in_file(read_config_file()) else "default"


def read_config_file() -> dict[str, Any]:
    """The content of ``~/.prime/config.json``; {} without one, or, warned once, with a bad one."""
    content, problem = _read_config_file()
    if problem is not None:
        _warn_once(problem)
    return content


def config_file_problem() -> str | None:
    """What keeps ``~/.prime/config.json`` from being used; None where nothing does."""
    return _read_config_file()[1]


def _read_config_file() -> tuple[dict[str, Any], str | None]:
    try:
        path = config_file()
    except RuntimeError:  # no home directory
        return {}, None
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return {}, None
    except OSError as exc:
        problem = f"cannot be read ({exc.strerror})"
    except UnicodeDecodeError:
        problem = "is not UTF-8"
    except (ValueError, RecursionError) as exc:
        place = f" (line {exc.lineno})" if isinstance(exc, json.JSONDecodeError) else ""
        problem = f"is not JSON{place}"
    else:
        if isinstance(content, dict):
            return content, None
        problem = f"holds a JSON {type(content).__name__} where an object belongs"
    return {}, f"{path} {problem}; it is treated as absent"


def _set_in_file(content: Mapping[str, Any]) -> dict[str, Any]:
    """What of the file's content counts as set: null and blank do not."""
    return {
        name: value
        for name, value in content.items()
        if name in CONFIG_FILE_KEYS
        and value is not None
        and not (isinstance(value, str) and not value.strip())
    }


@cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def _variable_of(field: str) -> str | None:
    for variable in VARIABLES[field]:
        value = os.environ.get(variable)
        if value is not None and (value.strip() or field in _BLANK_IS_A_VALUE):
            return variable
    return None


def _complaint(field: str, why: str) -> str:
    variable = _variable_of(field)
    where = variable or f"{field} in {config_file()}"
    value = os.environ[variable] if variable else read_config_file().get(field)
    if field == "api_key" or _HIDING & set(str(value)):
        return f"{where}: {why}"
    return f"{where}={value!r}: {why}"
