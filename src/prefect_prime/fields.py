"""Validated field types that ``Credentials``, ``Settings`` and the block share.

A key, a team, a URL and a traces URL are checked in this one place. What a check
raises names neither the key nor anything that a URL may hide (``user:password@``);
the caller adds the name of the field or variable.
"""

import re
from ipaddress import IPv6Address
from typing import Annotated, Any
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr, ValidationError

#: Production, from prime_traces' ``Config.DEFAULT_BASE_URL``.
DEFAULT_BASE_URL = "https://api.primeintellect.ai"
#: From prime_runs' ``Config.DEFAULT_FRONTEND_URL``.
DEFAULT_FRONTEND_URL = "https://app.primeintellect.ai"
#: From prime_traces' ``Config.DEFAULT_TRACES_URL``.
DEFAULT_TRACES_URL = "https://api.primeintellect.ai"

#: A name as DNS has it (one with other letters is written as ``xn--...``), or an IPv4 address.
_HOST = re.compile(r"[a-z0-9._-]*[a-z0-9][a-z0-9._-]*")
_API_PATH = "/api/v1"
_DEFAULT_PORTS = {"http": 80, "https": 443}


def check_api_key(value: SecretStr) -> SecretStr:
    """The key without surrounding whitespace; ValueError unless it can be a header."""
    key = value.get_secret_value().strip()
    if not key:
        raise ValueError("is empty: write the API key")
    if not _fits_a_header(key):
        raise ValueError(
            "holds a space, a control character or a character outside ASCII, which no API key "
            "has: copy the key again"
        )
    return SecretStr(key)


def blank_to_none(value: Any) -> Any:
    """Whitespace around a string goes; a string of nothing else is None."""
    if isinstance(value, str):
        return value.strip() or None
    return value


def check_team_id(value: str | None) -> str | None:
    """The team as given; ValueError unless it can be a header."""
    if value is not None and not _fits_a_header(value):
        raise ValueError("holds a space, a control character or a character outside ASCII")
    return value


def check_url(value: str) -> str:
    """``scheme://host[:port][/prefix]`` without a trailing slash or ``/api/v1``."""
    url = value.strip()
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("holds whitespace or a control character: write https://host")
    parts, port = _split(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or port == 0:
        raise ValueError("is not an http(s) URL with a host: write https://host")
    if "@" in parts.netloc:
        raise ValueError("holds a user or password: write https://host; the API key is a field")
    if parts.query or parts.fragment:
        raise ValueError("holds a query or fragment: write https://host")
    if not (_is_ipv6 if "[" in parts.netloc else _HOST.fullmatch)(parts.hostname):
        # What httpx and this module might read differently would make two origins of one.
        raise ValueError("has a host that is neither a name nor an address: write https://host")
    if "\\" in parts.path or not {".", ".."}.isdisjoint(unquote(parts.path).split("/")):
        raise ValueError("has a path that leads elsewhere: write https://host or https://host/path")
    path = parts.path.rstrip("/")
    while path.endswith(_API_PATH):
        path = path.removesuffix(_API_PATH).rstrip("/")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}"


def origin_of(url: str) -> str:
    """``scheme://host:port`` of a URL that :func:`check_url` accepted, the port always there."""
    parts, port = _split(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{port or _DEFAULT_PORTS[parts.scheme]}"


def problems(exc: ValidationError) -> list[tuple[str, str]]:
    """``(field, message)`` per problem of ``exc``, without the value that was refused."""
    return [
        (
            ".".join(str(part) for part in error["loc"]),
            str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"],
        )
        for error in exc.errors(include_url=False, include_input=False)
    ]


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def _fits_a_header(value: str) -> bool:
    return all("!" <= character <= "~" for character in value)


def _split(url: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("is not a URL: write https://host or https://host:port") from None
    return parts, port


ApiKey = Annotated[SecretStr, AfterValidator(check_api_key)]
Url = Annotated[str, AfterValidator(check_url)]
#: For a field that may be unset, None: blank counts as unset.
TeamId = Annotated[str | None, BeforeValidator(blank_to_none), AfterValidator(check_team_id)]
OptionalUrl = Annotated[Url | None, BeforeValidator(blank_to_none)]
