"""The application: every route behind the key, errors in their API's form, pages open.

``{"detail": ...}`` for the evaluations API, ``{"error": {"code", "message"}}`` for Prime
Traces. Only requests that name this machine as their host are served: a page in a browser
cannot reach the platform under a name of its own (DNS rebinding).
"""

import hmac

import orjson
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prime_traces import ErrorCode
from pydantic import SecretStr
from starlette.middleware.trustedhost import TrustedHostMiddleware

from prefect_prime.local import (
    environments,
    episodes_read,
    evaluations,
    pages,
    run_search,
    runs_read,
    samples,
    traces_read,
    traces_upload,
)
from prefect_prime.local.faulty_app import Route
from prefect_prime.local.wire import (
    HTTP_FORBIDDEN,
    HTTP_UNAUTHORIZED,
    HTTP_UNPROCESSABLE,
    CurrentPlatform,
    Platform,
    TracesError,
    discard_body,
    error_answer,
    json_answer,
)

API = "/api/v1"
_EVALUATIONS = (environments, evaluations, samples)
_TRACES = (traces_upload, traces_read, episodes_read, runs_read, run_search)
#: The names under which this machine may be addressed.
HOSTS = ["127.0.0.1", "localhost"]


def create_app(platform: Platform, api_key: SecretStr) -> FastAPI:
    """The application that serves ``platform`` to whoever sends ``api_key``."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.platform = platform
    expected = f"Bearer {api_key.get_secret_value()}".encode()

    def is_authorized(request: Request) -> bool:
        given = request.headers.get("authorization", "").encode("latin-1")
        return hmac.compare_digest(given, expected)

    async def evaluations_key(request: Request) -> None:
        if not is_authorized(request):
            await discard_body(request)
            raise HTTPException(HTTP_UNAUTHORIZED, "the API key is missing or wrong")

    async def traces_key(request: Request, platform: CurrentPlatform) -> None:
        refusal = None if is_authorized(request) else _unauthenticated()
        refusal = refusal or _no_access(platform)
        if refusal is not None:
            await discard_body(request)
            raise refusal

    evaluations_api = APIRouter(prefix=API, dependencies=[Depends(evaluations_key)])
    for module in _EVALUATIONS:
        evaluations_api.include_router(module.router)
    traces_api = APIRouter(prefix=API, dependencies=[Depends(traces_key)])
    for module in _TRACES:
        traces_api.include_router(module.router)
    app.include_router(evaluations_api)
    app.include_router(traces_api)
    app.include_router(pages.router)

    app.exception_handler(TracesError)(_on_traces_error)
    app.exception_handler(RequestValidationError)(_on_wrong_parameter)
    app.exception_handler(orjson.JSONEncodeError)(_on_deep_json)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)
    return app


def api_routes() -> list[Route]:
    """Every route of the two APIs; names and paths are without ``/api/v1``."""
    return [
        Route(f"{method} {route.path}", method, route.path_regex, is_traces=modules is _TRACES)
        for modules in (_EVALUATIONS, _TRACES)
        for module in modules
        for route in module.router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    ]


def _unauthenticated() -> TracesError:
    return TracesError(
        HTTP_UNAUTHORIZED, ErrorCode.UNAUTHENTICATED, "the API key is missing or wrong"
    )


def _no_access(platform: Platform) -> TracesError | None:
    match platform.modes.traces:
        case "not_enabled":
            code, message = ErrorCode.SERVICE_NOT_ENABLED, "Prime Traces is off for this account"
        case "forbidden":
            code, message = ErrorCode.FORBIDDEN, "the API key lacks the scope for traces"
        case _:
            return None
    return TracesError(HTTP_FORBIDDEN, code, message)


async def _on_traces_error(_request: Request, error: TracesError) -> Response:
    return error_answer(error)


async def _on_wrong_parameter(_request: Request, error: RequestValidationError) -> Response:
    problems = (f"{item['loc'][-1]}: {item['msg']}" for item in error.errors())
    return json_answer({"detail": "; ".join(problems)}, HTTP_UNPROCESSABLE)


async def _on_deep_json(_request: Request, _error: orjson.JSONEncodeError) -> Response:
    # What orjson has read it can also write, but for values nested too deeply for it.
    return json_answer({"detail": "the body is nested too deeply"}, HTTP_UNPROCESSABLE)
