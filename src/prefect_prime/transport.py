"""Requests to the platform's API: one connection pool, typed errors, declared replays.

A failure is *ambiguous* when the platform may have processed the request: 500, 502,
503, 504, a read time-out, a connection lost after sending. One that is not (connect
error, 429) replays for any call; an ambiguous one replays only for a call declared
idempotent, and is otherwise raised at once, marked for ``errors.is_ambiguous``.

A redirect is an error: nothing is sent to an origin that nobody named. A success
that is no JSON object (a login page) is an error as well. Errors are raised outside
of ``except`` blocks, so that none refers to an httpx exception, whose request holds
the key; whatever they quote is short, printable and free of the key.
"""

import logging
import os
import ssl
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
from prime_traces.core.client import AMBIGUOUS_TRANSPORT_ERRORS, raise_for_response, retry_delay
from pydantic import SecretStr

from prefect_prime.errors import (
    APIError,
    APITimeoutError,
    ConfigurationError,
    LineFormatConflictError,
    TransportError,
    is_ambiguous,
    is_transient,
    mark_ambiguous,
)

logger = logging.getLogger(__name__)

#: Attempts per call. Few: a longer outage is its caller's to wait out.
MAX_ATTEMPTS = 3
#: Seconds between two attempts where the platform names none.
MAX_BACKOFF = 2.0
#: Characters of an answer that an error quotes, from its beginning and its end.
_QUOTED_HEAD, _QUOTED_TAIL = 240, 120

API_PREFIX = "/api/v1"
#: What httpx raises where the environment's proxies or certificates cannot be used.
_POOL_ERRORS = (OSError, ValueError, ImportError)


class Call(NamedTuple):
    """One call of the API: ``path`` has ``{placeholders}``, each filled with one segment."""

    method: str
    path: str
    #: Sending it twice leaves the platform as sending it once does.
    idempotent: bool


class Transport:
    """Sends each :class:`Call` to one platform; thread-safe."""

    def __init__(
        self,
        *,
        api_key: SecretStr,
        base_url: str,
        timeout: httpx.Timeout,
        transport: httpx.BaseTransport | None,
        attempts: int,
        sleep: Callable[[float], None],
        team_id: str | None = None,
    ) -> None:
        self._key = api_key
        self._attempts = attempts
        self._base_url = base_url
        self._sleep = sleep
        # As httpx.Headers, which show no key to a traceback that shows variables.
        headers = httpx.Headers({"User-Agent": user_agent()})
        headers["Authorization"] = f"Bearer {api_key.get_secret_value()}"
        if team_id is not None:  # Prime Traces alone takes it so
            headers["X-Prime-Team-ID"] = team_id
        self._client = open_pool(
            headers=headers,
            timeout=timeout,
            transport=transport,
        )

    def send(
        self,
        call: Call,
        *segments: str,
        params: Mapping[str, str | int] | None = None,
        body: bytes | None = None,
        timeout: httpx.Timeout | None = None,
    ) -> dict[str, Any]:
        """The answer's JSON object ({} for an empty answer); an ``APIError`` otherwise."""
        path = call.path.format(*map(segment, segments))
        request = self._client.build_request(
            call.method,
            f"{self._base_url}{API_PREFIX}{path}",
            params=params,
            content=body,
            headers=None if body is None else {"Content-Type": "application/json"},
            timeout=httpx.USE_CLIENT_DEFAULT if timeout is None else timeout,
        )
        for attempt in range(MAX_ATTEMPTS):
            outcome = self._attempt(request, f"{call.method} {path}")
            if not isinstance(outcome, APIError):
                return outcome
            replayable = call.idempotent or not is_ambiguous(outcome)
            told = getattr(outcome, "retry_after", None) is not None
            attempts = MAX_ATTEMPTS if told else self._attempts
            if attempt + 1 >= attempts or not (replayable and is_transient(outcome)):
                raise outcome
            delay = retry_delay(outcome, attempt)
            if not told:
                delay = min(delay, MAX_BACKOFF)
            logger.debug("%s; again in %.1f s", outcome, delay)
            self._sleep(delay)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _attempt(self, request: httpx.Request, what: str) -> dict[str, Any] | APIError:
        error: APIError
        try:
            response = self._client.send(request)
        except httpx.RequestError as exc:
            timed_out = isinstance(exc, httpx.TimeoutException)
            reason = f"{type(exc).__name__}: {exc}".removesuffix(": ")
            error = (APITimeoutError if timed_out else TransportError)(
                f"{what} at {self._base_url} "
                f"{'timed out' if timed_out else 'failed'} ({self._quoted(reason)})"
            )
            mark_ambiguous(error, ambiguous=isinstance(exc, AMBIGUOUS_TRANSPORT_ERRORS))
        else:
            return self._answer(response, what)
        return error

    def _answer(self, response: httpx.Response, what: str) -> dict[str, Any] | APIError:
        if response.has_redirect_location:
            return self._redirected(response, what)
        error = _refused(response)
        if error is not None:
            error.args = (f"{what}: {self._quoted(str(error))}",)
            return error
        if not response.content:
            return {}
        try:
            answer = response.json()
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict):
            return answer
        kind = response.headers.get("Content-Type", "no content type")
        return mark_ambiguous(
            APIError(
                f"{what} at {self._base_url} answered {response.status_code} with something that "
                f"is not a JSON object ({self._quoted(kind)}): {self._quoted(response.text)!r}. "
                "Is this the platform's API, or the login page of a proxy?",
                status_code=response.status_code,
            )
        )

    def _redirected(self, response: httpx.Response, what: str) -> APIError:
        try:
            target = response.url.join(response.headers["Location"])
            origin = f"{target.scheme}://{target.netloc.decode('ascii')}"
        except httpx.InvalidURL:
            origin = "an address that is not a URL"
        return mark_ambiguous(
            APIError(
                f"{what} at {self._base_url} was redirected ({response.status_code}) to "
                f"{self._quoted(origin)}; nothing was sent there. If that is the service, name it "
                "in the credentials (PRIME_API_BASE_URL, PRIME_TRACES_URL).",
                status_code=response.status_code,
            ),
            ambiguous=False,
        )

    def _quoted(self, text: str) -> str:
        return quoted(text, self._key)


def quoted(text: str, key: SecretStr) -> str:
    """What somebody else wrote, as an error may quote it: short, printable, free of the key."""
    text = text.replace(key.get_secret_value(), "[API key]")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(text) > _QUOTED_HEAD + _QUOTED_TAIL:
        return f"{text[:_QUOTED_HEAD]} ... {text[-_QUOTED_TAIL:]}"
    return text


def segment(value: str) -> str:
    """``value`` as one segment of a URL's path; ConfigurationError when it can be none."""
    quoted = quote(value, safe="", errors="replace")
    if quoted in {"", ".", ".."}:
        raise ConfigurationError(f"{value!r} cannot be the name or id of anything on the platform")
    return quoted


@cache
def user_agent() -> str:
    """``prefect-prime/<version> python/<version> httpx/<version>``."""
    try:
        own = version("prefect-prime")
    except PackageNotFoundError:
        own = "0"
    python = ".".join(str(part) for part in sys.version_info[:3])
    return f"prefect-prime/{own} python/{python} httpx/{httpx.__version__}"


def open_pool(
    *,
    headers: httpx.Headers,
    timeout: httpx.Timeout,
    transport: httpx.BaseTransport | None = None,
) -> httpx.Client:
    """A pool that follows no redirect: what is sent would go to an origin that nobody named.

    Raises ``ConfigurationError`` where the environment's certificates or proxies are unusable.
    """
    failure: Exception
    try:
        return httpx.Client(
            headers=headers,
            timeout=timeout,
            transport=transport,
            follow_redirects=False,
            verify=_certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
        )
    except _POOL_ERRORS as exc:
        failure = _unusable_environment(exc)
    raise failure


@cache
def _certificates(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    """As httpx reads them from these variables; once, because it takes 30 ms."""
    return httpx.create_ssl_context()


def _unusable_environment(exc: Exception) -> ConfigurationError:
    if isinstance(exc, OSError):
        why = exc.strerror or exc
        return ConfigurationError(f"SSL_CERT_FILE or SSL_CERT_DIR cannot be read ({why})")
    # Its message may show a proxy's password.
    return ConfigurationError(
        f"a proxy of the environment cannot be used ({type(exc).__name__}): "
        "look at HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"
    )


def _refused(response: httpx.Response) -> APIError | None:
    error: APIError
    try:
        raise_for_response(response)
    except LineFormatConflictError as exc:
        # The family's 409 is about traces; here it is an evaluation that is closed.
        error = APIError(str(exc), status_code=exc.status_code, code=exc.code)
    except APIError as exc:
        error = exc.with_traceback(None)
    else:
        return None
    if not isinstance(error.code, str):  # whatever JSON the answer had there
        error.code = None
    return error
