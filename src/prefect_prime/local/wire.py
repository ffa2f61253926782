"""What every route shares: reading a body, JSON answers, and the two error forms.

The evaluations API answers ``{"detail": "..."}``, Prime Traces answers
``{"error": {"code", "message"}}``. A body over its limit is read to its end and thrown
away before the 413: closing the connection on a client that still sends would show it
a broken pipe in place of the answer.
"""

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

import orjson
from fastapi import Depends, HTTPException, Request, Response
from prime_traces import ErrorCode
from pydantic import BaseModel, ValidationError

from prefect_prime.local.rules import Limits, Modes
from prefect_prime.local.store import Store

HTTP_BAD_REQUEST = 400
HTTP_UNAUTHORIZED = 401
HTTP_FORBIDDEN = 403
HTTP_NOT_FOUND = 404
HTTP_CONFLICT = 409
HTTP_TOO_LARGE = 413
HTTP_UNPROCESSABLE = 422

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Platform:
    """What the routes work on."""

    store: Store
    modes: Modes
    limits: Limits
    url: str


class TracesError(Exception):
    """An answer of Prime Traces other than success, with its code."""

    def __init__(self, status: int, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def rejected(code: ErrorCode, message: str) -> TracesError:
    """The 400 that says what is wrong with an upload or a query."""
    return TracesError(HTTP_BAD_REQUEST, code, message)


def platform_of(request: Request) -> Platform:
    """The platform that serves ``request``."""
    return cast("Platform", request.app.state.platform)


CurrentPlatform = Annotated[Platform, Depends(platform_of)]


def json_answer(value: Any, status: int = 200) -> Response:
    """``value`` as a JSON response."""
    return Response(orjson.dumps(value), status, media_type="application/json")


def error_answer(error: TracesError) -> Response:
    """``error`` in the form of Prime Traces."""
    body = {"error": {"code": error.code.value, "message": str(error)}}
    return json_answer(body, error.status)


async def discard_body(request: Request) -> None:
    """Read what is left of the body and forget it."""
    async for _ in request.stream():
        pass


async def read_body(request: Request, limit: int) -> bytes | None:
    """The body, or None when it is longer than ``limit`` bytes."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            chunks.append(chunk)
        else:
            chunks.clear()
    return b"".join(chunks) if size <= limit else None


async def _json_body(request: Request, platform: CurrentPlatform) -> bytes:
    limit = platform.limits.json_body
    body = await read_body(request, limit)
    if body is None:
        raise HTTPException(HTTP_TOO_LARGE, f"the body is over {limit} bytes")
    return body


def _json_object(body: Annotated[bytes, Depends(_json_body)]) -> dict[str, Any]:
    if not body:
        return {}
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise HTTPException(HTTP_UNPROCESSABLE, f"the body is not JSON: {exc}") from None
    if not isinstance(value, dict):
        raise HTTPException(HTTP_UNPROCESSABLE, "the body is not a JSON object")
    return value


#: The body as a JSON object; an empty one is ``{}``. Parsed on a worker thread.
JsonObject = Annotated[dict[str, Any], Depends(_json_object)]


def validated(model: type[Model], body: dict[str, Any]) -> Model:
    """``body`` as ``model``; a wrong field is a 422."""
    try:
        return model.model_validate(body)
    except ValidationError as exc:
        problems = (
            f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in exc.errors()
        )
        raise HTTPException(HTTP_UNPROCESSABLE, "; ".join(problems)) from None
