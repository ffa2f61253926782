"""The upload tasks: one task run per closed segment and sink.

Their results are cached by content: should the process die after an upload and before the
ledger has it, the next one finds the receipt instead of sending again. They take what they
send as plain objects, which Prefect neither copies nor looks into.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, cast

from prefect import task
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.states import Completed
from prime_traces import MAX_LINE_BYTES, ErrorCode, LineFormat, TracesClient

from prefect_prime import creation
from prefect_prime.errors import APIError, TraceTooLargeError, detached, is_ambiguous
from prefect_prime.platform_client import PlatformClient
from prefect_prime.readback import missing_rows
from prefect_prime.splitting import send_in_parts
from prefect_prime.spool.requests import SamplesRequest
from prefect_prime.tasks.retrying import REPEATABLE
from prefect_prime.traces_client import Packed, TracesUploads, pack


class TracesUpload:
    """One segment as Prime Traces takes it: ``read`` gives its ``records`` lines, in pieces of
    whole lines. ``label`` tells a person what it carries. ``first``: the service has acknowledged
    nothing of this evaluation yet.
    """

    def __init__(
        self,
        label: str,
        read: Callable[[], Iterable[bytes]],
        cache_key: str,
        *,
        records: int,
        line_format: LineFormat,
        context: dict[str, str],
        first: bool,
    ) -> None:
        self.label = label
        self.read = read
        self.cache_key = cache_key
        self.records = records
        self.line_format = line_format
        self.context = context
        self.first = first

    def packed(self, positions: range) -> Packed:
        """Some of the lines, or all. Raises ``TraceTooLargeError`` for a line that the service
        never takes.
        """
        if len(positions) == self.records:
            whole = pack(self.read())
            if whole.size <= MAX_LINE_BYTES:
                return whole
        for position in positions:
            if (size := len(self._lines[position]) - 1) > MAX_LINE_BYTES:
                raise TraceTooLargeError(position + 1, size, MAX_LINE_BYTES)
        return pack(self._lines[positions.start : positions.stop])

    @cached_property
    def _lines(self) -> list[bytes]:
        return [line + b"\n" for line in b"".join(self.read()).split(b"\n")[:-1]]


class SamplesJournal(Protocol):
    """Where the progress of one segment's requests is kept; they are counted from 1."""

    def begin(self, request: int) -> None:
        """It is about to be sent."""

    def answered(self, requests: int, blamed: Mapping[str, str]) -> None:
        """So many are answered, and no further one was processed. ``blamed`` holds the records
        of all of them that were refused, with their reasons.
        """

    def rows_before(self) -> int:
        """How many rows of the evaluation were stored before the next request."""


class SamplesUpload:
    """One segment as sample requests; ``sent`` of them are answered already.

    With ``doubted_at``, the next one may have been processed: the Unix time at which it was
    begun. The ``journal`` is told of each one, so that a retry, here or in another process,
    goes on behind it.
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
        blamed: Mapping[str, str],
        journal: SamplesJournal,
    ) -> None:
        self.label = label
        self.evaluation_id = evaluation_id
        self.requests = requests
        self.cache_key = cache_key
        self.sent = sent
        self.doubted_at = doubted_at
        self.blamed = dict(blamed)
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
def upload_traces(client: TracesClient, upload: TracesUpload) -> dict[str, Any] | State[None]:
    """Send one segment to Prime Traces, in parts where it does not take it as a whole.

    Returns ``{"receipts": [upload id (hex sha256), ...], "blamed": [[position, reason], ...]}``:
    which lines were refused, counted from 0. Content-addressed there: the same bytes replay the
    same receipt. Where the service is off for this account from the start, returns a state
    named Skipped. Raises the errors of ``prime_traces``.
    """
    receipts: list[str] = []

    def send(positions: range) -> None:
        receipts.append(_upload_lines(client, upload, upload.packed(positions)))

    refused: APIError | None = None
    try:
        blamed = send_in_parts(upload.records, send)
    except APIError as error:
        refused = error
    else:
        return {"receipts": receipts, "blamed": list(blamed.items())}
    if upload.first and refused.code == ErrorCode.SERVICE_NOT_ENABLED:
        return Completed(name="Skipped", message="Prime Traces is off for this account")
    raise refused


def _upload_lines(client: TracesClient, upload: TracesUpload, packed: Packed) -> str:
    failure: APIError | None = None
    receipt: dict[str, Any] = {}
    try:
        receipt = cast("TracesUploads", client.client).upload_batch(
            packed,
            f"sha256:{packed.digest}",
            line_format=upload.line_format,
            context=upload.context,
        )
    except APIError as error:
        failure = detached(error)
    if failure is not None:
        raise failure
    return str(receipt["upload_id"])


@task(
    name="upload samples",
    task_run_name="upload samples {upload.label}",
    cache_key_fn=_content,
    persist_result=True,
    result_serializer="json",
    **REPEATABLE,
)
def upload_samples(client: PlatformClient, upload: SamplesUpload) -> dict[str, str]:
    """Append one segment's rows to the evaluation; returns the records that were refused, with
    the reasons, by id.

    The platform appends whatever it gets, so a request that may have been processed is read
    back, and only what is missing is sent. One that is refused because of its content is sent
    in parts. Raises the errors of ``PlatformClient``.
    """
    for position, request in enumerate(upload.requests[upload.sent :], start=upload.sent + 1):
        missing = _missing(client, upload, request)
        upload.journal.begin(position)
        _push(client, upload, request, missing, position)
        upload.sent, upload.doubted_at = position, None
        upload.journal.answered(position, upload.blamed)
    return upload.blamed


def _missing(
    client: PlatformClient, upload: SamplesUpload, request: SamplesRequest
) -> Sequence[int]:
    """The positions of the rows that are to be sent."""
    if upload.doubted_at is None:
        return range(len(request.owners))
    creation.settle(upload.doubted_at)
    ids = [str(row["sample_id"]) for row in request.rows()]
    return missing_rows(client, upload.evaluation_id, ids, known=upload.journal.rows_before())


def _push(
    client: PlatformClient,
    upload: SamplesUpload,
    request: SamplesRequest,
    missing: Sequence[int],
    position: int,
) -> None:
    untouched = len(missing) == len(request.owners)

    def send(part: range) -> None:
        nonlocal untouched
        rows = missing[part.start : part.stop]
        if rows:
            client.push_samples(upload.evaluation_id, request.part(rows))
            untouched = False

    try:
        blamed = send_in_parts(len(missing), send)
    except APIError as error:
        if is_ambiguous(error) or not untouched:
            upload.doubted_at = time.time()
        else:
            upload.doubted_at = None
            upload.journal.answered(position - 1, upload.blamed)
        raise
    for part, reason in blamed.items():
        upload.blamed[request.owners[missing[part]]] = reason
