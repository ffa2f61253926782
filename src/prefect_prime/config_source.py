"""The launched config, as the evaluation's metadata keeps it.

A file is stored byte for byte under ``config_source`` (nothing is redacted: keep
credentials out of it); a mapping is stored as given. Whatever cannot be stored raises
ConfigurationError, before any request.
"""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from prefect_prime.encoding import decode, encode
from prefect_prime.errors import ConfigurationError, RecordRejectedError

#: Bytes of a config file that the platform stores: a limit of the dashboard.
MAX_CONFIG_BYTES = 256 * 1024
#: Keys of the metadata that this package writes itself.
RESERVED_KEYS = frozenset({"prefect", "prime_runs"})

#: Characters of a path that an error shows.
_SHOWN = 200

_FORMATS = {".toml": "toml", ".json": "json", ".yaml": "yaml", ".yml": "yaml"}


def read_config(
    value: str | PathLike[str] | Mapping[str, Any] | None, base: Path | None = None
) -> dict[str, Any]:
    """The metadata that ``value`` stands for; {} for None.

    ``value``: a path (a string is never the config's text), from the current directory
    or else from ``base``, the folder of the flow's file, and then
    ``{"config_source": {"format": "toml"|"json"|"yaml"|"text", "text", "filename"}}``;
    or a mapping, which may bring its own ``config_source``, in its natural JSON (see
    ``encoding``).
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return _as_json(value)
    if isinstance(value, (str, PathLike)):
        return {"config_source": _read(_find(Path(value), base))}
    raise ConfigurationError(
        f"config is a {type(value).__name__}: give a path (str or Path) or a mapping"
    )


def _find(path: Path, base: Path | None) -> Path:
    folders = [Path()] if base is None or path.is_absolute() else [Path(), base]
    problem = "does not exist"
    try:
        for folder in folders:
            if (folder / path).exists():
                return folder / path
    except OSError as exc:
        problem = f"cannot be looked up ({exc.strerror})"
    if not path.is_absolute():
        places = " or ".join(str(folder.absolute()) for folder in folders)
        problem = f"{problem} in {places}"
    raise ConfigurationError(f"config {_shown(path)} {problem}")


def _read(path: Path) -> dict[str, str]:
    text = problem = ""
    try:
        if path.is_file():
            with path.open("rb") as file:
                content = file.read(MAX_CONFIG_BYTES + 1)
            if len(content) > MAX_CONFIG_BYTES:
                problem = f"is over {MAX_CONFIG_BYTES // 1024} KiB, which the platform stores"
            text = content.decode("utf-8")
        else:
            problem = "is a directory" if path.is_dir() else "is not a regular file"
    except OSError as exc:
        problem = f"cannot be read ({exc.strerror})"
    except UnicodeDecodeError as exc:
        # A character cut by the limit is no wrong encoding.
        problem = problem or f"is not UTF-8 (byte {exc.start}): save it as UTF-8"
    if problem:
        raise ConfigurationError(f"config {_shown(path)} {problem}")
    return {
        "format": _FORMATS.get(path.suffix.lower(), "text"),
        "text": text,
        "filename": path.name,
    }


def _shown(path: Path) -> str:
    text = str(path)
    # A config's own text, passed where its path belongs, is not repeated.
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _as_json(mapping: Mapping[str, Any]) -> dict[str, Any]:
    reserved = sorted(RESERVED_KEYS & mapping.keys())
    if reserved:
        raise ConfigurationError(
            f"config: the key {reserved[0]!r} is reserved for what this package writes; rename it"
        )
    try:
        stored: dict[str, Any] = decode(encode(mapping))
    except RecordRejectedError as exc:
        raise ConfigurationError(f"config: {exc}") from None
    return stored
