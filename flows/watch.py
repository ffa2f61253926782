"""Shows a running eval to people: artifacts, a line a minute in the log, a live line.

One daemon thread per session does all of it, so the eval never waits for it, and nothing that
goes wrong here reaches the eval: a Prefect server that is away costs what it would have shown.
At the end the thread shows what came out, and that alone is waited for, within bounds.
"""

import json
import re
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING

from prefect.client.orchestration import SyncPrefectClient

from prefect_prime.endings import Ending
from prefect_prime.flows import events, summary
from prefect_prime.flows.artifacts import Artifacts, connect, impatient
from prefect_prime.flows.closing import Closing
from prefect_prime.flows.markdown import code, link
from prefect_prime.flows.naming import name_for, was_made_up
from prefect_prime.flows.progress import Pace, Progress
from prefect_prime.flows.terminal import Terminal

if TYPE_CHECKING:
    from prefect_prime.flows.session import Session

#: Seconds between two updates: of the progress artifact, of the log, of the live line.
_UPDATE = 5.0
_TELL = 60.0
_DRAW = 1.0
#: Seconds that the end waits for the last update.
_LAST = 5.0


class Watch:
    """Watches one session from ``start`` to ``finish``; either may be left out."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._artifacts = Artifacts(
            session.flow_run.id, session.facts.artifacts, session.facts.show
        )
        self._pace = Pace()
        self._over = threading.Event()
        self._closing: Closing | None = None
        self._thread: threading.Thread | None = None
        self._rename: str | None = None
        self._linked: str | None = None
        self._client: SyncPrefectClient | None = None

    # -- for the session -----------------------------------------------------------------

    def start(self, *, may_rename: bool) -> None:
        """Begin to show the eval; again at each attempt. ``may_rename``: its flow has no
        ``flow_run_name`` of its own.
        """
        flow_run = self._session.flow_run
        if may_rename and flow_run.name and was_made_up(flow_run.name):
            self._rename = flow_run.name = name_for(self._session.plan)
        if self._thread is None:
            self._begin()

    def finish(self, closing: Closing | None) -> None:
        """Show what came out, if anything did, and be done; waits for a few seconds at most."""
        self._closing = closing
        if self._thread is None and closing is not None:
            self._begin()
        self._over.set()
        if self._thread is not None:
            self._thread.join(_LAST)

    def _begin(self) -> None:
        # The context holds which Prefect server it is.
        context = copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="prime-watch", daemon=True
        )
        self._thread.start()

    # -- the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        terminal = None
        try:
            with impatient():
                if not self._over.is_set():
                    terminal = Terminal(name_for(self._session.plan))
                    self._watch(terminal)
                if (closing := self._closing) is not None:
                    self._ask(lambda client: self._show_end(client, closing))
        except Exception as error:  # noqa: BLE001 - nothing here is worth an eval
            self._session.log.debug("The eval is not shown any more: %r", error)
        finally:
            if terminal is not None:
                terminal.close()
            if self._client is not None:
                self._client.__exit__(None, None, None)

    def _watch(self, terminal: Terminal) -> None:
        updated, told = 0.0, time.monotonic()
        while True:
            now = time.monotonic()
            try:
                progress = Progress.of(self._session, self._pace)
                terminal.show(progress)
                if now - told >= _TELL:
                    told = now
                    self._session.log.info("%s", progress.line())
            except Exception as error:  # noqa: BLE001 - a ledger that is busy, say: the next look may do
                self._session.log.debug("There is no seeing how far the eval is: %r", error)
            else:
                if now - updated >= _UPDATE:
                    updated = now
                    self._ask(lambda client: self._show(client, progress))  # noqa: B023 - called at once
            if self._over.wait(_DRAW if terminal.is_live else _UPDATE):
                return

    def _ask(self, show: Callable[[SyncPrefectClient], None]) -> None:
        """Do something with the Prefect server, if it answers."""
        try:
            if self._client is None:
                self._client = connect().__enter__()
            show(self._client)
        except Exception as error:  # noqa: BLE001 - the next update may get through
            self._session.log.debug("The Prefect server did not take what is shown: %r", error)

    def _show(self, client: SyncPrefectClient, progress: Progress) -> None:
        if self._rename is not None:
            client.update_flow_run(self._session.flow_run.id, name=self._rename)
            self._rename = None
        self._show_link(client)
        self._artifacts.put(
            client, "prime-progress", "progress", progress.percent, progress.description()
        )

    def _show_link(self, client: SyncPrefectClient) -> None:
        evaluation = self._session.evaluation
        if evaluation is None or evaluation.id == self._linked:
            return
        # What Prefect's own link artifacts are.
        shown = link(evaluation.name, evaluation.url)
        about = f"On the platform: {code(evaluation.id)}"
        self._artifacts.put(client, "prime-evaluation", "markdown", shown, about)
        self._linked = evaluation.id

    # -- the end -------------------------------------------------------------------------

    def _show_end(self, client: SyncPrefectClient, closing: Closing) -> None:
        if self._rename is not None:
            client.update_flow_run(self._session.flow_run.id, name=self._rename)
        key = _key(closing)
        put, about = self._artifacts.put, summary.description(closing)
        self._show_link(client)
        put(client, "prime-summary", "markdown", summary.markdown(closing), about, key=key)
        rows = closing.uploads or [{"note": "nothing was logged"}]
        table = json.dumps(list(rows))  # as Prefect's own table artifacts hold it
        put(client, "prime-uploads", "table", table, "Uploads by segment and sink")
        done = 100.0 if closing.title == "Completed" else self._percent(closing)
        put(client, "prime-progress", "progress", done, about)

    def _percent(self, closing: Closing) -> float:
        expected = closing.plan.expected
        return min(100.0, 100 * closing.episodes / expected) if expected else 0.0


def close_event(session: "Session", ending: Ending, closing: Closing) -> None:
    """Say that the evaluation was closed."""
    if closing.evaluation is not None and closing.status is not None:
        emit_for(session, events.what_for(ending, closing.status), closing.payload())


def emit_for(session: "Session", what: events.What, payload: dict[str, object]) -> None:
    """Emit an event of the evaluation that a session has."""
    evaluation, spec = session.evaluation, session.plan.spec
    if evaluation is None:
        return
    first = spec.environments[0] if spec.environments else None
    events.emit(
        what,
        evaluation.id,
        evaluation.name,
        session.flow_run.id,
        payload,
        environment=None if first is None else first.dataset or first.id,
        model=spec.model,
    )


def _key(closing: Closing) -> str:
    """One key per environment and model: its page is the history of that eval."""
    slug = re.sub(r"[^a-z0-9]+", "-", name_for(closing.plan).lower()).strip("-")
    return f"prime-summary-{slug[:80].strip('-')}" if slug else "prime-summary"
