"""One fault: what a client sees in place of an answer, and whether its request was processed.

That last is what a client cannot see, so every fault that loses an answer says it:
``before`` (the platform never saw the request), ``after`` (it did, and only the answer is
lost) or ``late`` (the client has its error already when the platform processes the request,
some seconds later, as behind a gateway that gave up waiting).

A fault is written as a short text::

    KIND [before | after | late] [SECONDS] [retry-after=SECONDS | retry-after=date+SECONDS]

    502 before                       a gateway's 502 page; any status from 400 to 599
    503 after                        stored, and answered with a 503
    504 late 8                       answered with a 504 at once, stored 8 s later
    429 retry-after=2                "before" where nothing is said
    503 before retry-after=date+30   the time as an HTTP date, 30 s from the answer
    reset before                     the connection is reset: nothing was processed
    reset after, reset late 8        the same, and it was, or will be in 8 s
    hang before, hang after 60       no answer, ever or for 60 s; then the connection is reset
    html before                      200, and a login page in place of JSON
    slow 2                           the right answer, 2 s late
    truncated                        the right answer, and the connection ends in its middle
    refuse 3                         this connection is reset, new ones are refused for 3 s
    restart 3                        all connections are reset, new ones refused for 3 s;
                                     then the same data is there on the same port
"""

import re
from dataclasses import dataclass
from typing import Literal, Self, cast, get_args

When = Literal["before", "after", "late"]

#: The statuses that a fault may answer with.
STATUSES = range(400, 600)

_TEXT = re.compile(
    r"(?P<kind>[a-z]+|[0-9]{3})"
    rf"(?: +(?P<when>{'|'.join(get_args(When))}))?"
    r"(?: +(?P<seconds>[0-9]+(?:\.[0-9]+)?))?"
    r"(?: +retry-after=(?P<as_date>date\+)?(?P<retry_after>[0-9]{1,9}))?"
)


@dataclass(frozen=True)
class _Kind:
    """When it may happen (the first is meant where none is given), and what it needs."""

    whens: tuple[When, ...] = ("before", "after", "late")
    seconds: Literal["needed", "optional", "none"] = "none"


_STATUS = _Kind()
_KINDS = {
    "reset": _Kind(),
    "html": _Kind(),
    "hang": _Kind(("before", "after"), "optional"),
    "slow": _Kind(("after",), "needed"),
    "truncated": _Kind(("after",)),
    "refuse": _Kind(("before", "after"), "needed"),
    "restart": _Kind(("before", "after"), "needed"),
}


@dataclass(frozen=True)
class Fault:
    """One fault, as the module describes it; ``ValueError`` for what makes no sense.

    ``kind`` is a status as text or one of the words above. ``seconds`` is how long it lasts,
    for ``late`` how long after the answer the request is processed. ``retry_after`` (whole
    seconds) adds that header to a status, ``as_date`` in its form of an HTTP date.
    """

    kind: str
    when: When = "before"
    seconds: float | None = None
    retry_after: int | None = None
    as_date: bool = False

    def __post_init__(self) -> None:
        if self.status is None and self.kind not in _KINDS:
            raise ValueError(
                f"fault {self.kind!r} is not known: use a status from {STATUSES.start} to"
                f" {STATUSES.stop - 1}, {', '.join(_KINDS)}."
            )
        kind = _KINDS.get(self.kind, _STATUS)
        if self.when not in kind.whens:
            raise ValueError(f"{self.kind!r} has no {self.when!r}: use {' or '.join(kind.whens)}.")
        takes = "needed" if self.when == "late" else kind.seconds
        if self.seconds is None and takes == "needed":
            raise ValueError(f"'{self} SECONDS' needs its seconds.")
        if self.seconds is not None and (takes == "none" or self.seconds < 0):
            raise ValueError(f"'{self}' takes no such seconds.")
        if self.retry_after is not None and self.status is None:
            raise ValueError(f"'{self}': only a status has a Retry-After.")

    @property
    def status(self) -> int | None:
        """The status that it answers with in place of the right one, if it is of that kind."""
        return int(self.kind) if self.kind.isdecimal() and int(self.kind) in STATUSES else None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The fault that ``text`` describes; ``ValueError`` if it is none."""
        found = _TEXT.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a fault: see prefect_prime.local.fault.")
        kind, when, seconds, retry_after = found.group("kind", "when", "seconds", "retry_after")
        return cls(
            kind,
            cast("When", when) if when else _KINDS.get(kind, _STATUS).whens[0],
            None if seconds is None else float(seconds),
            None if retry_after is None else int(retry_after),
            as_date=found["as_date"] is not None,
        )

    def __str__(self) -> str:
        words = [self.kind]
        if len(_KINDS.get(self.kind, _STATUS).whens) > 1:
            words.append(self.when)
        if self.seconds is not None:
            words.append(f"{self.seconds:g}")
        if self.retry_after is not None:
            words.append(f"retry-after={'date+' * self.as_date}{self.retry_after}")
        return " ".join(words)
