"""What an eval run is, and what became of the records that were logged into it."""

from typing import Any

from prefect_prime.flows.guests import LocalGuest
from prefect_prime.flows.session import Session
from prefect_prime.flows.untracked import Untracked


class Outcome:
    """The side of an ``EvalRun`` that is read."""

    @property
    def _session(self) -> Session | Untracked | LocalGuest:
        """Where records go."""
        raise NotImplementedError

    @property
    def id(self) -> str | None:
        """The evaluation's id on the platform; None while there is none."""
        evaluation = self._session.evaluation
        return None if evaluation is None else evaluation.id

    @property
    def url(self) -> str | None:
        """The evaluation's page; None while there is none."""
        evaluation = self._session.evaluation
        return None if evaluation is None else evaluation.url

    @property
    def name(self) -> str:
        """The evaluation's name."""
        return self._session.plan.spec.name

    @property
    def attempt(self) -> int:
        """Which attempt of the flow run this is, from 1."""
        return self._session.attempt

    @property
    def episodes_logged(self) -> int:
        """Episodes taken in, in all attempts; an episode logged twice counts once."""
        return self._session.episodes

    @property
    def summary(self) -> dict[str, Any]:
        """``avg_reward``, ``avg_metrics``, ``avg_error`` so far, and what the user set."""
        return self._session.metrics()

    @property
    def stored_records(self) -> dict[str, int]:
        """By sink: records that it has acknowledged."""
        return self._by_sink("stored")

    @property
    def pending_records(self) -> dict[str, int]:
        """By sink: records that are still to be sent."""
        return self._by_sink("pending")

    @property
    def failed_records(self) -> dict[str, int]:
        """By sink: records that it could not store. They stay in the spool."""
        return self._by_sink("failed")

    @property
    def skipped_records(self) -> dict[str, int]:
        """By sink: records that it does not apply to, or that came while it was off.

        For each sink, stored + pending + failed + skipped is what was taken in; with what was
        rejected and dropped, that is all that was logged, each record once.
        """
        return self._by_sink("skipped")

    def _by_sink(self, outcome: str) -> dict[str, int]:
        tallies = self._session.tallies()
        return {sink: getattr(tally, outcome) for sink, tally in tallies.items()}

    @property
    def dropped_records(self) -> int:
        """Records that the spool itself could not take: the disk is full, say."""
        return self._session.dropped

    @property
    def rejected_records(self) -> int:
        """Records that could not be stored at all, each logged with its reason."""
        return self._session.rejected

    @property
    def errors(self) -> list[str]:
        """What went wrong for good, a line each."""
        return self._session.errors
