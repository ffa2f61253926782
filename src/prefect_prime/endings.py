"""How an evaluation ends on the platform."""

from dataclasses import dataclass
from typing import Literal

#: The statuses that close an evaluation. A crash is a failure that nobody explained: the
#: platform has one status for both, and the message tells them apart.
ClosedStatus = Literal["COMPLETED", "FAILED", "CANCELLED"]

#: Statuses that nobody may change any more; PROCESSING is on its way to COMPLETED.
CLOSED: frozenset[str] = frozenset({"PROCESSING", "COMPLETED", "FAILED", "CANCELLED"})

#: The platform refuses a longer ``error_message``, in characters.
MAX_MESSAGE = 4096


@dataclass(frozen=True, slots=True)
class Ending:
    """The status to close with, and why where it is not COMPLETED."""

    status: ClosedStatus
    message: str | None = None

    def __post_init__(self) -> None:
        if self.message is not None and len(self.message) > MAX_MESSAGE:
            object.__setattr__(self, "message", self.message[: MAX_MESSAGE - 1] + "…")

    @property
    def crashed(self) -> bool:
        """Whether nobody explained the failure: the process died, or was told to go."""
        return self.status == "FAILED" and (self.message or "").startswith("crashed:")
