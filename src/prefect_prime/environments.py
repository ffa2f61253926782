"""How a person names an environment, and its id on the hub.

``"name"`` is one's own, made when it is not there; ``"owner/name"`` is the newest
version that somebody published; ``{"id": ..., "version_id": ...}`` is exactly that
one. Whatever else is refused before any request: an evaluation that silently hangs on
the wrong environment looks like a successful one.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from prefect_prime.errors import (
    APIError,
    ConfigurationError,
    EnvironmentResolutionError,
    NotFoundError,
    is_record_rejection,
)

if TYPE_CHECKING:
    from prefect_prime.platform_client import PlatformClient

#: What a part of a name may hold: nothing that ends or leaves a segment of a URL's path.
_PART = re.compile(r"[\w.+-]*\w[\w.+-]*")
_KEYS = frozenset({"id", "name", "slug", "version_id"})
_FORMS = '"name", "owner/name" or {"id": ..., "version_id": ...}'


@dataclass(frozen=True, kw_only=True)
class EnvironmentRef:
    """One environment as it was named: by ``id``, else by ``name`` with or without ``owner``."""

    id: str | None = None
    owner: str | None = None
    name: str | None = None
    version_id: str | None = None

    @classmethod
    def parse(cls, value: Any) -> Self:
        """From ``"name"``, ``"owner/name"`` or a mapping with ``id``, ``name`` or ``slug``.

        A mapping may add ``version_id``, and a name to an id (for the data set's name).
        ConfigurationError says what to write instead.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            owner, name = _parse_name(value)
            return cls(owner=owner, name=name)
        if not isinstance(value, Mapping):
            raise ConfigurationError(
                f"environment {value!r}: a {type(value).__name__} names none; write {_FORMS}"
            )
        unknown = [key for key in value if key not in _KEYS]
        if unknown:
            raise ConfigurationError(
                f"environment {dict(value)!r}: unknown key {unknown[0]!r}; write {_FORMS}"
            )
        given = {key: _text(value, key) for key in _KEYS if value.get(key) is not None}
        names = [given[key] for key in ("name", "slug") if key in given]
        if len(names) + ("id" in given) == 0 or len(names) > 1:
            raise ConfigurationError(
                f"environment {dict(value)!r}: needs an id, or one of name and slug; write {_FORMS}"
            )
        named = _parse_name(names[0]) if names else (None, None)
        return cls(
            id=given.get("id"), owner=named[0], name=named[1], version_id=given.get("version_id")
        )

    @property
    def dataset(self) -> str | None:
        """The name without its owner; None for an id alone."""
        return self.name

    def __str__(self) -> str:
        if self.id is not None:
            return self.id
        return f"{self.owner}/{self.name}" if self.owner else f"{self.name}"


def resolve(client: "PlatformClient", refs: Iterable[EnvironmentRef]) -> list[dict[str, str]]:
    """``[{"id", "version_id"?}, ...]``, as ``create_evaluation`` takes them.

    EnvironmentResolutionError names one that the hub does not know. Any other failure
    (transport, transient, a refused key) is the client's own error, as it was raised.
    """
    return [_resolve(client, ref) for ref in refs]


def _resolve(client: "PlatformClient", ref: EnvironmentRef) -> dict[str, str]:
    reason = "the hub's answer holds no id"
    try:
        found = _ask(client, ref)
    except APIError as exc:
        if not (isinstance(exc, NotFoundError) or is_record_rejection(exc)):
            raise
        found, reason = {}, str(exc)
    environment_id = found.get("id")
    if not isinstance(environment_id, str) or not environment_id:
        raise EnvironmentResolutionError(
            f"environment {str(ref)!r} is not on the hub, or not for this team: {reason}"
        )
    resolved = {"id": environment_id}
    if ref.version_id is not None:
        resolved["version_id"] = ref.version_id
    return resolved


def _ask(client: "PlatformClient", ref: EnvironmentRef) -> dict[str, Any]:
    if ref.id is not None:
        return client.lookup_environment(ref.id)
    if ref.owner is not None:
        return client.latest_environment(ref.owner, ref.name or "")
    return client.resolve_environment(ref.name or "")


def _parse_name(text: str) -> tuple[str | None, str]:
    bare, _, version = text.partition("@")
    if version:
        raise ConfigurationError(
            f"environment {text!r}: a version is named by its id; write "
            f'{{"id": ..., "version_id": ...}}, or {bare!r} for the newest'
        )
    parts = text.split("/")
    if len(parts) > 2:  # noqa: PLR2004 - owner and name
        raise ConfigurationError(
            f"environment {text!r}: more than owner/name; write {'/'.join(parts[:2])!r}"
        )
    for part in parts:
        if not _PART.fullmatch(part):
            problem = "an empty part" if not part else f"{part!r} is no name"
            raise ConfigurationError(
                f"environment {text!r}: {problem} (letters, digits, '_', '-', '.', '+'); "
                f"write {_FORMS}"
            )
    return (parts[0], parts[1]) if len(parts) == 2 else (None, parts[0])  # noqa: PLR2004 - same


def _text(mapping: Mapping[Any, Any], key: str) -> str:
    value = mapping[key]
    if not isinstance(value, str) or not value.strip() or value != value.strip():
        raise ConfigurationError(
            f"environment {dict(mapping)!r}: {key} must be a string without blanks around it"
        )
    return value
