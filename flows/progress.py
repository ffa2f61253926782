"""How far an eval is, in numbers and in words."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect_prime.flows.markdown import duration, figure, plural, text
from prefect_prime.spool import Sink

if TYPE_CHECKING:
    from prefect_prime.flows.session import Session

#: Seconds that the present rate is taken over.
_WINDOW = 60.0
_WHOLE = 100.0


class Pace:
    """Episodes per second, over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def rate(self, episodes: int, now: float) -> float | None:
        """The rate now; None while nothing can be said."""
        self._seen.append((now, episodes))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _WINDOW:  # noqa: PLR2004 - a first and a last
            self._seen.popleft()
        began, before = self._seen[0]
        return (episodes - before) / (now - began) if now > began else None


@dataclass(frozen=True)
class Progress:
    """One look at a running eval. Sinks hold records that are ``behind``; ``outages`` the Unix
    times since when a sink takes nothing. ``arrived`` is the share of records dealt with.
    """

    expected: int | None
    attempt: int
    episodes: int
    rate: float | None
    reward: float | None
    rejected: int
    behind: Mapping[Sink, int]
    outages: Mapping[Sink, float]
    arrived: float
    online: bool

    @classmethod
    def of(cls, session: "Session", pace: Pace) -> "Progress":
        """How far a session is."""
        episodes, tallies = session.episodes, session.tallies()
        reward = session.metrics().get("avg_reward") if episodes else None
        behind = {sink: tally.pending for sink, tally in tallies.items()}
        total = sum(t.stored + t.failed + t.skipped + t.pending for t in tallies.values())
        return cls(
            expected=session.plan.expected,
            attempt=session.attempt,
            episodes=episodes,
            rate=pace.rate(episodes, time.monotonic()),
            reward=reward if isinstance(reward, int | float) else None,
            rejected=session.rejected,
            behind=behind,
            outages={} if session.uploader is None else session.uploader.outages(),
            arrived=1.0 - sum(behind.values()) / total if total else 0.0,
            online=session.uploader is not None,
        )

    @property
    def percent(self) -> float:
        """Of the episodes that are expected; where nobody said how many, of the records that
        are to arrive.
        """
        if not self.expected or self.expected < 0:
            return _WHOLE * self.arrived
        return min(_WHOLE, _WHOLE * self.episodes / self.expected)

    @property
    def left(self) -> float | None:
        """Seconds until all expected episodes are there, at this rate."""
        if not self.expected or not self.rate or self.episodes >= self.expected:
            return None
        return (self.expected - self.episodes) / self.rate

    def parts(self) -> list[str]:
        """What a line says: episodes, rate, time left, mean reward."""
        of = f" of {self.expected:,}" if self.expected else ""
        parts = [f"{self.episodes:,}{of} episode{'' if self.episodes == 1 and not of else 's'}"]
        if self.rate:
            parts.append(f"{self.rate:,.3g}/s")
        if self.left is not None:
            parts.append(f"{duration(self.left)} left")
        if self.reward is not None:
            parts.append(f"mean reward {figure(self.reward)}")
        if self.rejected:
            parts.append(f"{self.rejected:,} rejected")
        if self.attempt > 1:
            parts.append(f"attempt {self.attempt}")
        return parts

    def uploads(self) -> list[str]:
        """What is behind, per sink, and since when a sink is out."""
        lines = []
        for sink, behind in self.behind.items():
            since = self.outages.get(sink)
            if since is not None:
                clock = time.strftime("%H:%M:%S", time.gmtime(since))
                lines.append(
                    f"{sink}: out since {clock} UTC ({duration(time.time() - since)}),"
                    f" {plural(behind, 'record')} behind"
                )
            elif behind:
                lines.append(f"{sink}: {plural(behind, 'record')} behind")
        return lines

    def line(self) -> str:
        """All of it as plain text, for a log."""
        return " · ".join([*self.parts(), *self.uploads()])

    def description(self) -> str:
        """All of it as Markdown, for the progress artifact; in short lines, because the cards of
        a flow run's artifacts cut long ones.
        """
        lines = [*self.parts(), *(part for line in self.uploads() for part in line.split(", "))]
        if not self.online:
            lines.append("offline: the records wait on disk")
        elif not self.uploads():
            lines.append("uploads: nothing behind")
        listed = [text(line) for line in lines]
        if not self.expected:
            listed.append("the bar: what has arrived")
        return "\n".join(f"- {line}" for line in listed)
