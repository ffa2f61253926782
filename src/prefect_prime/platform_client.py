"""The platform's evaluations API: one method per call, one table of what may be replayed.

Each method raises ``prime_traces``' errors (``errors.APIError`` and below) and nothing
of httpx; before any request, RecordRejectedError for what has no JSON form, and
ConfigurationError for an id that is no segment of a URL. The team goes into bodies and
the listing's query, never into a header.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx

from prefect_prime.encoding import encode
from prefect_prime.errors import APIError, mark_ambiguous
from prefect_prime.transport import MAX_ATTEMPTS, Call, Transport, segment

if TYPE_CHECKING:
    from prefect_prime.credentials import Credentials

RESOLVE_ENVIRONMENT = Call("POST", "/environmentshub/resolve", idempotent=True)  # get-or-create
LOOKUP_ENVIRONMENT = Call("POST", "/environmentshub/lookup", idempotent=True)  # reads
LATEST_ENVIRONMENT = Call("GET", "/environmentshub/{}/{}/@latest", idempotent=True)
CREATE_EVALUATION = Call("POST", "/evaluations/", idempotent=False)  # a second evaluation
LIST_EVALUATIONS = Call("GET", "/evaluations/", idempotent=True)
GET_EVALUATION = Call("GET", "/evaluations/{}", idempotent=True)
UPDATE_EVALUATION = Call("PUT", "/evaluations/{}", idempotent=True)  # replaces what it names
PUSH_SAMPLES = Call("POST", "/evaluations/{}/samples", idempotent=False)  # appends rows
LIST_SAMPLES = Call("GET", "/evaluations/{}/samples", idempotent=True)
FINALIZE_EVALUATION = Call("POST", "/evaluations/{}/finalize", idempotent=False)  # starts a job

#: Seconds; generous for a platform under load, and no call but an upload is large.
DEFAULT_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
#: Seconds to send or to be answered for samples: a request holds up to 25 MiB.
UPLOAD_TIMEOUT_SECONDS = 300.0
#: Characters of an update's ``error_message``: the platform refuses more.
MAX_ERROR_MESSAGE = 4096
#: What is shown as a link, in terminals and in Markdown: nothing that ends one early.
_LINK = re.compile(r"https?://[^\x00-\x20\x7f-\U0010ffff()<>\[\]\"`\\]+")


class PlatformClient:
    """A client of one platform, as one person or team; thread-safe, a context manager.

    ``timeout`` holds for every call; without it an upload of samples may take longer.
    ``attempts`` is how often a call is tried at most where the platform names no time to
    wait; a caller that waits out failures itself passes 1. ``transport`` and ``sleep`` are
    the seams of tests.
    """

    def __init__(
        self,
        credentials: "Credentials",
        *,
        timeout: httpx.Timeout | float | None = None,
        attempts: int = MAX_ATTEMPTS,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._team_id = credentials.team_id
        self._frontend_url = credentials.frontend_url
        self._upload_timeout = (
            httpx.Timeout(UPLOAD_TIMEOUT_SECONDS, connect=DEFAULT_TIMEOUT.connect)
            if timeout is None
            else None
        )
        self._transport = Transport(
            api_key=credentials.api_key,
            base_url=credentials.base_url,
            timeout=DEFAULT_TIMEOUT if timeout is None else httpx.Timeout(timeout),
            transport=transport,
            attempts=attempts,
            sleep=sleep,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection pool."""
        self._transport.close()

    def resolve_environment(self, name: str) -> dict[str, Any]:
        """The caller's environment called ``name`` (``{"id", ...}``), made if it is not there."""
        body = _body(name=name, team_id=self._team_id)
        return _data(self._transport.send(RESOLVE_ENVIRONMENT, body=body))

    def lookup_environment(self, environment_id: str) -> dict[str, Any]:
        """The environment with this id; NotFoundError when there is none."""
        return _data(self._transport.send(LOOKUP_ENVIRONMENT, body=_body(id=environment_id)))

    def latest_environment(self, owner: str, name: str) -> dict[str, Any]:
        """The newest published version of ``owner/name``; NotFoundError when there is none."""
        return _data(self._transport.send(LATEST_ENVIRONMENT, owner, name))

    def create_evaluation(
        self,
        *,
        name: str,
        environments: Sequence[Mapping[str, Any]],
        suite_id: str | None = None,
        run_id: str | None = None,
        model_name: str | None = None,
        dataset: str | None = None,
        framework: str | None = None,
        task_type: str | None = None,
        description: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        is_public: bool | None = None,
    ) -> dict[str, Any]:
        """Open an evaluation; the answer has ``evaluation_id``.

        ``environments``: ``[{"id", "version_id"?}, ...]``, see ``environments.resolve``.
        """
        answer = self._transport.send(
            CREATE_EVALUATION,
            body=_body(
                name=name,
                environments=list(environments),
                suite_id=suite_id,
                run_id=run_id,
                model_name=model_name,
                dataset=dataset,
                framework=framework,
                task_type=task_type,
                description=description,
                tags=list(tags),
                metadata=metadata,
                metrics=metrics,
                is_public=is_public,
                team_id=self._team_id,
            ),
        )
        evaluation_id = answer.get("evaluation_id")
        if not isinstance(evaluation_id, str) or not evaluation_id:
            raise mark_ambiguous(
                APIError(
                    "POST /evaluations/ answered without an evaluation_id (keys: "
                    f"{', '.join(sorted(map(str, answer))) or 'none'})"
                )
            )
        return answer

    def list_evaluations(
        self,
        *,
        environment_name: str | None = None,
        suite_id: str | None = None,
        skip: int = 0,
        limit: int = 50,
    ) -> dict[str, Any]:
        """``{"evaluations", "total", "skip", "limit"}`` of this team or person, newest first."""
        filters = {
            "environment_name": environment_name,
            "suite_id": suite_id,
            "team_id": self._team_id,
        }
        params: dict[str, str | int] = {k: v for k, v in filters.items() if v is not None}
        return self._transport.send(
            LIST_EVALUATIONS, params={**params, "skip": skip, "limit": limit}
        )

    def get_evaluation(self, evaluation_id: str) -> dict[str, Any]:
        """The evaluation; NotFoundError when there is none."""
        return self._transport.send(GET_EVALUATION, evaluation_id)

    def update_evaluation(self, evaluation_id: str, **fields: Any) -> dict[str, Any]:
        """Replace the fields named, each as a whole (``metadata`` is not merged).

        ``status`` is FAILED or CANCELLED, with an ``error_message`` that is cut to 4096
        characters; a closed evaluation answers a status with a 409 ``APIError``, and
        refuses the whole update.
        """
        message = fields.get("error_message")
        if isinstance(message, str):
            fields["error_message"] = message[:MAX_ERROR_MESSAGE]
        return self._transport.send(UPDATE_EVALUATION, evaluation_id, body=_body(**fields))

    def push_samples(
        self, evaluation_id: str, rows: Sequence[Mapping[str, Any]] | bytes
    ) -> dict[str, Any]:
        """Append sample rows, or a whole body ``{"samples": [...]}`` that is encoded already.

        A body over 25 MiB is answered with a 413 ``APIError``. Rows are appended again
        by a replay, so an ambiguous failure is the caller's to read back.
        """
        body = rows if isinstance(rows, bytes) else _body(samples=list(rows))
        return self._transport.send(
            PUSH_SAMPLES, evaluation_id, body=body, timeout=self._upload_timeout
        )

    def list_samples(
        self, evaluation_id: str, *, page: int = 1, limit: int = 100
    ) -> dict[str, Any]:
        """``{"samples", "total", "page", "limit", "has_more"}``; pages count from 1."""
        return self._transport.send(
            LIST_SAMPLES, evaluation_id, params={"page": page, "limit": limit}
        )

    def finalize_evaluation(
        self, evaluation_id: str, metrics: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Complete the evaluation; on a closed one a 409 ``APIError``."""
        body = _body(metrics={} if metrics is None else metrics)
        return self._transport.send(FINALIZE_EVALUATION, evaluation_id, body=body)

    def viewer_url(self, evaluation: Mapping[str, Any]) -> str:
        """The page a person opens: what the platform gave, else the dashboard's address."""
        given = evaluation.get("viewer_url")
        if isinstance(given, str) and _LINK.fullmatch(given):
            return given
        evaluation_id = str(evaluation.get("evaluation_id") or evaluation.get("id"))
        return f"{self._frontend_url}/dashboard/evaluations/{segment(evaluation_id)}"


def _body(**fields: Any) -> bytes:
    return encode({key: value for key, value in fields.items() if value is not None})


def _data(answer: dict[str, Any]) -> dict[str, Any]:
    data = answer.get("data")
    return data if isinstance(data, dict) else answer
