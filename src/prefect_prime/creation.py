"""Creating an evaluation once, also when nobody can tell whether it was created.

``POST /evaluations/`` is not idempotent, and its answer may be lost: with the connection, or
with the process. So each evaluation carries a tag of its own, the intent to create it is saved
before the request, and whoever finds an intent without a result looks for the tag first:

- found: that is the evaluation
- absent, and older than the settle time: it was not created, and is created now
- cannot be looked up: nobody knows yet; the error is raised
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from prefect_prime.endings import CLOSED
from prefect_prime.errors import APIError, is_ambiguous
from prefect_prime.platform_client import PlatformClient

#: Seconds after which a request whose answer was lost counts as not processed. A commit
#: later than that would make a second evaluation; the platform is not known to do so.
SETTLE_TIME = 5.0
#: Seconds by which the platform's clock may be behind ours.
_CLOCK_SKEW = 300.0
_PAGE = 100


class Intent(Protocol):
    """Where the intent to create is kept; ``at`` is its Unix time, None where there is none."""

    at: float | None

    def save(self) -> None:
        """Keep that the request is about to be sent, now."""

    def withdraw(self) -> None:
        """It was surely not processed: there is nothing to look for."""


def settle(since: float) -> None:
    """Wait until a request that was begun at a Unix time is processed, or never will be."""
    # Clocks are set back now and then.
    time.sleep(max(0.0, min(SETTLE_TIME, since + SETTLE_TIME - time.time())))


def create_once(
    client: PlatformClient, tag: str, intent: Intent, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Create the evaluation that ``tag`` is for, or find it; the platform's answer.

    Raises the errors of ``PlatformClient``. Every one may be met with another call: this one
    looks before it creates.
    """
    if intent.at is not None and (found := _settled(client, tag, intent.at)) is not None:
        return found
    intent.save()
    try:
        return client.create_evaluation(**fields)
    except APIError as error:
        failure = error
    if not is_ambiguous(failure):
        intent.withdraw()
    elif (found := _settled(client, tag, time.time())) is not None:
        return found
    raise failure


def _settled(client: PlatformClient, tag: str, since: float) -> dict[str, Any] | None:
    settle(since)
    return find(client, tag, since=since)


def find(client: PlatformClient, tag: str, *, since: float) -> dict[str, Any] | None:
    """The open evaluation with a tag, among those created after ``since``, newest first."""
    skip = 0
    while True:
        page = client.list_evaluations(skip=skip, limit=_PAGE)
        listed = page.get("evaluations") or []
        for evaluation in listed:
            if tag in (evaluation.get("tags") or ()) and evaluation.get("status") not in CLOSED:
                return dict(evaluation)
        skip += len(listed)
        if not listed or skip >= page.get("total", 0) or _created(listed[-1]) < since - _CLOCK_SKEW:
            return None


def _created(evaluation: Mapping[str, Any]) -> float:
    """When an evaluation was created, as Unix time; unknown counts as never too old."""
    try:
        created = datetime.fromisoformat(str(evaluation.get("created_at")))
    except ValueError:
        return float("inf")
    return (created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp()
