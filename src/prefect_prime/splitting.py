"""Sending in parts what a service does not take as a whole.

One record that a service refuses must not cost its neighbours, and a request that is too large
for a gateway nobody knew of is two requests that are not. So what is refused because of its
content is halved until each part is taken, or is one record, which is then the one to blame.
"""

from collections.abc import Callable

from prime_traces import ErrorCode

from prefect_prime.errors import APIError, TraceTooLargeError, is_record_rejection

#: Parts that are blamed one by one; then what is refused next is blamed as it stands. A service
#: that refuses everything would else get two requests for every record there is.
MOST_BLAMED = 32
#: Codes of Prime Traces that are about the request: every part of it would meet the same.
_ABOUT_THE_REQUEST = frozenset(
    {
        ErrorCode.DIGEST_MISMATCH,
        ErrorCode.INVALID_METADATA,
        ErrorCode.UNSUPPORTED_SCHEMA_VERSION,
        ErrorCode.INVALID_IDEMPOTENCY_KEY,
    }
)


def send_in_parts(count: int, send: Callable[[range], None]) -> dict[int, str]:
    """Send ``count`` parts, in order, in as few calls of ``send`` as it takes.

    ``send`` is given the positions to send. Returns why parts were refused, by position.
    Raises what ``send`` raises for any other reason; what was sent before stays sent.
    """
    blamed: dict[int, str] = {}
    waiting = [range(count)]
    while waiting:
        positions = waiting.pop()
        try:
            send(positions)
        except (APIError, TraceTooLargeError) as error:
            code = getattr(error, "code", None)
            if not is_record_rejection(error) or code in _ABOUT_THE_REQUEST:
                raise
            if len(positions) > 1 and len(blamed) < MOST_BLAMED:
                middle = len(positions) // 2
                waiting += [positions[middle:], positions[:middle]]
            else:
                blamed.update(dict.fromkeys(positions, str(error)))
    return blamed
