"""How each sink is doing, and so what may be sent to it now.

A transient failure holds a sink back, longer each time; then one segment probes at a time. A
refusal closes it until there are other credentials. Nothing is given up for being late.
"""

import time
from dataclasses import dataclass

#: Seconds that a sink is left alone after its first failure; doubled with each further one.
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
#: Seconds at most that a service's own ``Retry-After`` is honoured.
_LONGEST_TOLD = 60.0


@dataclass
class Lane:
    """The way to one sink. ``slots`` requests may be on it at once."""

    slots: int
    busy: int = 0
    failures: int = 0
    #: Unix time at which the outage began; None while there is none.
    out_since: float | None = None
    resume_at: float = 0.0
    #: Whether the sink has acknowledged anything yet.
    reached: bool = False
    #: Why it takes nothing with these settings.
    refusal: str | None = None

    def is_open(self, now: float) -> bool:
        """Whether one more segment may go, at a moment of the monotonic clock."""
        # The first one probes: a sink that is off, or refuses the key, says so once.
        slots = self.slots if self.reached and not self.failures else 1
        return self.busy < slots and self.resume_at <= now and self.refusal is None

    def hold_back(self, told: float | None) -> bool:
        """It failed for the moment; ``told`` is its ``Retry-After`` in seconds. Returns whether
        an outage begins with this.
        """
        self.failures += 1
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (self.failures - 1))
        self.resume_at = time.monotonic() + max(pause, min(_LONGEST_TOLD, told or 0.0))
        if self.out_since is not None:
            return False
        self.out_since = time.time()
        return True

    def answered(self, *, acknowledged: bool) -> float | None:
        """It took something, or said why not; how many seconds it was out, None if it was not."""
        was_out = None if self.out_since is None else time.time() - self.out_since
        self.failures, self.out_since = 0, None
        self.reached |= acknowledged
        return was_out
