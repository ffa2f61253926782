"""Every error that leaves this package, and the questions asked about one.

::

    Exception
    ├── PrefectPrimeError                   raised here, before or without a request
    │   ├── ConfigurationError              a setting, argument or file is wrong (ValueError)
    │   ├── EnvironmentResolutionError      an environment is not on the hub
    │   ├── RunFinishedError                a finished run was written to (RuntimeError)
    │   ├── RecordRejectedError             one record cannot be stored (ValueError)
    │   ├── ShardFailedError                a part of an eval failed for good
    │   ├── SpoolError                      the disk queue cannot be written or read
    │   └── UploadFailedError               an upload failed for good
    └── PrimeTracesError                    prime_traces' own family, re-exported
        ├── TraceTooLargeError              a line over 64 MiB
        └── APIError                        an answer of a service, or none
            ├── UnauthorizedError           401
            ├── PaymentRequiredError        402
            ├── ForbiddenError              403
            ├── NotFoundError               404
            ├── ValidationRejectedError     400
            ├── LineFormatConflictError     409 of Prime Traces
            ├── TraceNotIndexedError        409 of Prime Traces
            ├── AmbiguousDeleteError        a DELETE whose answer was lost
            ├── RetryableAPIError           429, 502, 503, 504
            └── TransportError              no answer
                └── APITimeoutError         none in time

What comes from a service is prime_traces' family, so that one set of ``except``
clauses covers traces and evaluations; an ``APIError`` has ``status_code`` and
``code`` (either may be None). Callers ask the predicates below and never compare
status codes themselves. Every error pickles with its attributes, and none holds a
request, a header or a key: Prefect pickles what a task raises.
"""

import copyreg
from typing import TypeVar

from prime_traces.core.client import AMBIGUOUS_TRANSPORT_ERRORS, is_ambiguous_delete_failure
from prime_traces.exceptions import (
    AmbiguousDeleteError,
    APIError,
    APITimeoutError,
    ForbiddenError,
    LineFormatConflictError,
    NotFoundError,
    PaymentRequiredError,
    PrimeTracesError,
    RetryableAPIError,
    TraceNotIndexedError,
    TraceTooLargeError,
    TransportError,
    UnauthorizedError,
    ValidationRejectedError,
)

__all__ = [
    "APIError",
    "APITimeoutError",
    "AmbiguousDeleteError",
    "ConfigurationError",
    "EnvironmentResolutionError",
    "ForbiddenError",
    "LineFormatConflictError",
    "NotFoundError",
    "PaymentRequiredError",
    "PrefectPrimeError",
    "PrimeTracesError",
    "RecordRejectedError",
    "RetryableAPIError",
    "RunFinishedError",
    "ShardFailedError",
    "SpoolError",
    "TraceNotIndexedError",
    "TraceTooLargeError",
    "TransportError",
    "UnauthorizedError",
    "UploadFailedError",
    "ValidationRejectedError",
    "detached",
    "is_ambiguous",
    "is_record_rejection",
    "is_refusal",
    "is_settings_fault",
    "is_transient",
    "mark_ambiguous",
]

#: 413 and 422 reach us as plain ``APIError``: the evaluations API answers them.
_RECORD_STATUSES = frozenset({400, 413, 422})
_REFUSAL_STATUSES = frozenset({401, 402, 403})
_SUCCESSES = frozenset(range(200, 300))
_REDIRECTS = range(300, 400)
_TIMEOUT_STATUSES = frozenset({408, 425, 429})
#: Server errors that say what the server is, not how it feels at the moment.
_LASTING_SERVER_ERRORS = frozenset({501, 505})
_FIRST_SERVER_ERROR = 500

_Error = TypeVar("_Error", bound=BaseException)


class PrefectPrimeError(Exception):
    """Base of the errors that this package itself finds."""


class ConfigurationError(PrefectPrimeError, ValueError):
    """A setting, an argument or a file is wrong; the message says what to write."""


class EnvironmentResolutionError(PrefectPrimeError):
    """The hub answered, and does not know the environment that the message names."""


class RunFinishedError(PrefectPrimeError, RuntimeError):
    """A run that has ended was written to."""


class RecordRejectedError(PrefectPrimeError, ValueError):
    """One record cannot be encoded or stored; its neighbours are unharmed."""


class SpoolError(PrefectPrimeError):
    """The spool on disk cannot be written or read."""


class ShardFailedError(PrefectPrimeError):
    """A part of a sharded eval failed for good; the message says which, and why."""


class UploadFailedError(PrefectPrimeError):
    """An upload failed for good; its records stay in the spool."""


def mark_ambiguous(exc: _Error, *, ambiguous: bool = True) -> _Error:
    """Record on ``exc`` whether its request may have been processed; returns ``exc``.

    The mark is what :func:`is_ambiguous` answers, and survives pickling.
    """
    vars(exc)["ambiguous"] = ambiguous
    return exc


def detached(exc: _Error) -> _Error:
    """``exc`` without the exception behind it, which may hold a request and its key.

    What that one told of ambiguity is marked first. Raise the result outside the
    ``except`` clause, else Python ties the two together again.
    """
    mark_ambiguous(exc, ambiguous=is_ambiguous(exc))
    exc.__cause__ = exc.__context__ = None
    return exc


def is_ambiguous(exc: BaseException) -> bool:
    """Whether the service may have processed the request that failed with ``exc``.

    True for 500, 502, 503 without a code of the service, 504, a lost answer and a
    transport failure of unknown kind; False for a refusal and for a request that
    was never sent.
    """
    mark = vars(exc).get("ambiguous")
    if mark is not None:
        return bool(mark)
    if isinstance(exc, AmbiguousDeleteError):
        return True
    if isinstance(exc, RetryableAPIError):
        return is_ambiguous_delete_failure(exc)
    if isinstance(exc, TransportError):
        return exc.__cause__ is None or isinstance(exc.__cause__, AMBIGUOUS_TRANSPORT_ERRORS)
    return isinstance(exc, APIError) and _status(exc) >= _FIRST_SERVER_ERROR


def is_transient(exc: BaseException) -> bool:
    """Whether ``exc`` is about this moment: the same request may succeed later.

    429, 5xx but 501 and 505, every transport failure, and a success that is no answer of the
    service: a login page, or what a proxy cut off.
    """
    if isinstance(exc, (RetryableAPIError, TransportError)):
        return True
    if not isinstance(exc, APIError):
        return False
    status = _status(exc)
    return status in _TIMEOUT_STATUSES | _SUCCESSES or (
        status >= _FIRST_SERVER_ERROR and status not in _LASTING_SERVER_ERRORS
    )


def is_record_rejection(exc: BaseException) -> bool:
    """Whether ``exc`` is about these records: others may still be accepted (400, 413, 422)."""
    if isinstance(exc, (RecordRejectedError, TraceTooLargeError)):
        return True
    return isinstance(exc, APIError) and _status(exc) in _RECORD_STATUSES


def is_refusal(exc: BaseException) -> bool:
    """Whether ``exc`` is about the account or its key, not the request (401, 402, 403)."""
    return isinstance(exc, APIError) and _status(exc) in _REFUSAL_STATUSES


def is_settings_fault(exc: BaseException) -> bool:
    """Whether a person has to change a setting before anything gets there: a refusal, or a
    redirect, which means that the platform's address is another.
    """
    return is_refusal(exc) or (isinstance(exc, APIError) and _status(exc) in _REDIRECTS)


def _status(exc: APIError) -> int:
    return exc.status_code or 0


def _reduce_too_large(
    exc: TraceTooLargeError,
) -> tuple[type[TraceTooLargeError], tuple[int, int, int]]:
    return TraceTooLargeError, (exc.line_number, exc.size, exc.limit)


# The one class of the family that pickles but cannot be read back: its constructor
# does not take its own message.
copyreg.pickle(TraceTooLargeError, _reduce_too_large)
