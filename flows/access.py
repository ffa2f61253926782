"""Who an eval would be for the platform and Prime Traces, and whether they let it in.

One read is sent to each, the smallest there is.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

import httpx
from prime_traces import ErrorCode

from prefect_prime.credentials import Credentials
from prefect_prime.errors import (
    APIError,
    ConfigurationError,
    ForbiddenError,
    NotFoundError,
    TransportError,
    UnauthorizedError,
    is_refusal,
)
from prefect_prime.flows.credentials import load_credentials
from prefect_prime.settings import Settings, source_of
from prefect_prime.transport import Call, Transport

Mark = Literal["good", "note", "bad"]

#: Seconds that a service has to answer: longer, and an eval would wait for it too.
TIMEOUT = 10.0

_LIST_TRACES = Call("GET", "/traces", idempotent=True)
_SAMPLES = "or send samples only: PREFECT_PRIME_SINKS=samples"
_UNREACHABLE = (
    "Is the URL right, and does the way there work? HTTPS_PROXY and NO_PROXY name a proxy,"
    " SSL_CERT_FILE a certificate authority of your own."
)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``note``: an eval would run, but know this."""

    name: str
    mark: Mark
    text: str
    #: What to do about it.
    advice: str = ""


def account(block: str | None, settings: Settings, *, prefect_answers: bool) -> Iterator[Check]:
    """The credentials, each with its source, and what both services say to them.

    ``block`` names a Prime Credentials block; None is what the environment says.
    """
    if block is not None and not prefect_answers:
        text = "the block was not loaded: the Prefect API cannot be used"
        yield Check("API key", "bad", text, "Mend the Prefect API first.")
        return
    try:
        credentials = load_credentials(block, settings)
    except ConfigurationError as error:
        yield Check("API key", "bad", str(error), "`prefect block ls` lists the blocks.")
        return
    if credentials is None:
        yield Check(
            "API key",
            "bad" if settings.mode == "online" else "note",
            "none: an eval would not be tracked",
            "Set PRIME_API_KEY, log in with `prime login`, or name a block: --credentials BLOCK.",
        )
        return

    def source(field: str) -> str:
        return f"block {block!r}" if block is not None else source_of(field)

    traces = credentials.effective_traces_url
    yield Check("API key", "good", f"set ({source('api_key')})")
    team = credentials.team_id or "none, your personal account"
    yield Check("Team", "good", f"{team} ({source('team_id')})")
    yield Check("Platform", "good", f"{credentials.base_url} ({source('base_url')})")
    if traces is not None:
        where = source("traces_url") if credentials.traces_url else "default"
        yield Check("Prime Traces", "good", f"{traces} ({where})")
    try:
        yield _evaluations(credentials)
        yield _traces(credentials, settings)
    except ConfigurationError as error:  # a proxy or certificates of the environment
        yield Check("Access", "bad", str(error), "Correct it; an eval would fail with this.")


def _traces(credentials: Credentials, settings: Settings) -> Check:
    name = "Traces"
    if settings.traces_opt_out or settings.sinks == "samples":
        field = "traces_opt_out" if settings.traces_opt_out else "sinks"
        return Check(name, "good", f"not sent, as {source_of(field)} says; samples are")
    optional = settings.sinks == "auto"
    if (url := credentials.effective_traces_url) is None:
        if optional:
            return Check(name, "good", "not sent, there is no traces URL; samples are")
        return Check(name, "bad", str(credentials.traces_skipped_reason), f"Set it, {_SAMPLES}.")
    return _traces_answer(credentials, url, optional=optional)


def _traces_answer(credentials: Credentials, url: str, *, optional: bool) -> Check:
    try:
        _read_traces(credentials, url)
    except APIError as error:
        name = "Traces"
        if error.code != ErrorCode.SERVICE_NOT_ENABLED:
            return Check(name, "bad", str(error), _advice(error))
        if optional:
            return Check(name, "good", "off for this account; samples are sent in their place")
        advice = f"Have Prime Traces enabled for the account, {_SAMPLES}, or =auto."
        return Check(name, "bad", str(error), advice)
    return Check("Traces", "good", "readable with this key")


def _read_traces(credentials: Credentials, url: str) -> None:
    """One read, once: the client's own would be repeated, and be given minutes."""
    transport = Transport(
        api_key=credentials.api_key,
        base_url=url,
        timeout=httpx.Timeout(TIMEOUT),
        transport=None,
        attempts=1,
        sleep=time.sleep,
        team_id=credentials.team_id,
    )
    with closing(transport):
        transport.send(_LIST_TRACES, params={"limit": 1})


def _evaluations(credentials: Credentials) -> Check:
    name = "Evaluations"
    try:
        with credentials.get_client(attempts=1, timeout=TIMEOUT) as client:
            client.list_evaluations(limit=1)
    except APIError as error:
        return Check(name, "bad", str(error), _advice(error))
    return Check(name, "good", "readable with this key")


def _advice(error: APIError) -> str:
    if isinstance(error, UnauthorizedError):
        return "This key is not accepted there: is it of this platform, and not revoked?"
    if isinstance(error, ForbiddenError):
        return "Check the key's scopes and the team (PRIME_TEAM_ID, or team_id of the block)."
    if is_refusal(error):
        return "Look at the account's billing status."
    if isinstance(error, TransportError):
        return _UNREACHABLE
    if isinstance(error, NotFoundError) or error.status_code is None or error.status_code < 400:  # noqa: PLR2004 - an error's status
        return "Does this URL lead to the service itself?"
    return "The service has trouble; try again. An eval would keep its records in the spool."
