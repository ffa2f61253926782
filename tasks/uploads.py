"""The upload tasks: one task run per closed segment and sink.

Their results are cached by content: should the process die after an upload and before the
ledger has it, the next one finds the receipt instead of sending again. They take what they
send as plain objects, which Prefect neither copies nor looks into.
"""

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Protocol

from prefect import task
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.states import Completed
from prime_traces import ErrorCode, LineFormat, TracesClient

from prefect_prime import creation
from prefect_prime.errors import APIError, detached, is_ambiguous
from prefect_prime.platform_client import PlatformClient
from prefect_prime.readback import missing_rows
from prefect_prime.spool.requests import SamplesRequest
from prefect_prime.tasks.retrying import REPEATABLE


class TracesUpload:
    """One segment as Prime Traces takes it. ``label`` tells a person what it carries.

    ``first``: the service has acknowledged nothing of this evaluation yet.
    """

    def __init__(
        self,
        label: str,
        data: bytes,
        cache_key: str,
        *,
        line_format: LineFormat,
        context: dict[str, str],
        first: bool,
    ) -> None:
        self.label = label
        self.data = data
        self.cache_key = cache_key
        self.line_format = line_format
        self.context = context
        self.first = first


class SamplesJournal(Protocol):
    """Where the progress of one segment's requests is kept; they are counted from 1."""

    def begin(self, request: int) -> None:
        """It is about to be sent."""

    def stored(self, requests: int) -> None:
        """So many are stored, and no further one."""

    def rows_before(self) -> int:
        """How many rows of the evaluation were stored before the next request."""


class SamplesUpload:
    """One segment as sample requests; ``sent`` of them are stored already.

    With ``doubted_at``, the next one may be: the Unix time at which it was begun. The
    ``journal`` is told of each one, so that a retry, here or in another process, goes on
    behind it.
    """

    def __init__(
        self,
        label: str,
        evaluation_id: str,
        requests: Sequence[SamplesRequest],
        cache_key: str,
        *,
        sent: int,
        doubted_at: float | None,
        journal: SamplesJournal,
    ) -> None:
        self.label = label
        self.evaluation_id = evaluation_id
        self.requests = requests
        self.cache_key = cache_key
        self.sent = sent
        self.doubted_at = doubted_at
        self.journal = journal


def _content(_context: TaskRunContext, parameters: dict[str, Any]) -> str:
    key: str = parameters["upload"].cache_key
    return key


@task(
    name="upload traces",
    task_run_name="upload traces {upload.label}",
    cache_key_fn=_content,
    persist_result=True,
    result_serializer="json",
    **REPEATABLE,
)
def upload_traces(client: TracesClient, upload: TracesUpload) -> str | State[None]:
    """Send one segment to Prime Traces; returns the receipt's upload id (hex sha256).

    Content-addressed there: the same bytes replay the same receipt. Where the service is off
    for this account from the start, returns a state named Skipped. Raises the errors of
    ``prime_traces``.
    """
    receipt: dict[str, Any] = {}
    refused: APIError | None = None
    try:
        receipt = client.client.upload_batch(
            upload.data,
            f"sha256:{sha256(upload.data).hexdigest()}",
            line_format=upload.line_format,
            context=upload.context,
        )
    except APIError as error:
        refused = detached(error)
    if refused is not None:
        if upload.first and refused.code == ErrorCode.SERVICE_NOT_ENABLED:
            return Completed(name="Skipped", message="Prime Traces is off for this account")
        raise refused
    if receipt.get("status") != "committed":
        raise APIError(f"Prime Traces answered without committing the upload: {receipt!r}")
    return str(receipt["upload_id"])


@task(
    name="upload samples",
    task_run_name="upload samples {upload.label}",
    cache_key_fn=_content,
    persist_result=True,
    result_serializer="json",
    **REPEATABLE,
)
def upload_samples(client: PlatformClient, upload: SamplesUpload) -> int:
    """Append one segment's rows to the evaluation; returns the number of requests.

    The platform appends whatever it gets, so a request that may have been processed is read
    back, and only what is missing is sent. Raises the errors of ``PlatformClient``.
    """
    journal = upload.journal
    for position, request in enumerate(upload.requests[upload.sent :], start=upload.sent + 1):
        body: bytes | None = request.body
        if upload.doubted_at is not None:
            creation.settle(upload.doubted_at)
            known = journal.rows_before()
            body = missing_rows(client, upload.evaluation_id, request.body, known=known)
        if body is not None:
            journal.begin(position)
            try:
                client.push_samples(upload.evaluation_id, body)
            except APIError as error:
                if is_ambiguous(error) or body is not request.body:
                    upload.doubted_at = time.time()
                else:
                    upload.doubted_at = None
                    journal.stored(position - 1)
                raise
        upload.sent, upload.doubted_at = position, None
        journal.stored(position)
    return len(upload.requests)
