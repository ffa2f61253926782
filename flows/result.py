"""What a tracked eval returns when its entrypoint returns nothing itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from prefect_prime.flows.notebook import html


@dataclass
class EvalResult(Mapping[str, Any]):
    """An evaluation's outcome, by attribute and by key.

    ``status`` is the platform's, or OFFLINE (everything is in the spool, for later) or
    UNTRACKED (there was no key, or tracking is disabled).
    ``summary`` holds ``avg_reward``, ``avg_metrics`` (by name) and ``avg_error`` (share of
    episodes that are not ok). ``losses`` holds, by sink, the records that ``failed`` and that
    are still ``pending``; ``rejected`` records were never sent, ``dropped`` ones never written.
    """

    evaluation_id: str | None
    url: str | None
    status: str
    episodes: int
    summary: dict[str, Any] = field(default_factory=dict)
    losses: dict[str, dict[str, int]] = field(default_factory=dict)
    rejected: int = 0
    dropped: int = 0

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return (each.name for each in fields(self))

    def __contains__(self, key: object) -> bool:
        return key in {each.name for each in fields(self)}

    def __len__(self) -> int:
        return len(fields(self))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        facts: dict[str, object] = {"status": self.status, "episodes": self.episodes}
        lost = {
            f"{kind} ({sink})": count
            for sink, counts in self.losses.items()
            for kind, count in counts.items()
            if count
        }
        beside = {"rejected": self.rejected, "dropped": self.dropped}
        facts |= lost | {kind: count for kind, count in beside.items() if count}
        return html(self.evaluation_id or "no evaluation", self.url, facts, self.summary)
