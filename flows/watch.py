"""Shows a running eval to people: artifacts, a line a minute in the log, a live line.

One daemon thread per session does all of it, so the eval never waits for it, and nothing that
goes wrong here reaches the eval: a Prefect server that is away costs what it would have shown.
At the end the thread shows what came out, and that alone is waited for, within bounds.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from typing import TYPE_CHECKING

from prefect.client.orchestration import SyncPrefectClient

from prefect_prime.endings import Ending
from prefect_prime.flows import events, summary
from prefect_prime.flows.artifacts import Artifacts, connected, impatient
from prefect_prime.flows.closing import Closing, Row, uploads
from prefect_prime.flows.markdown import code, link
from prefect_prime.flows.naming import name_for
from prefect_prime.flows.progress import Pace, Progress
from prefect_prime.flows.server import rename_flow_run
from prefect_prime.flows.terminal import Terminal

if TYPE_CHECKING:
    from prefect_prime.flows.session import Session

#: Seconds between two updates: of the progress artifact, of the log, of the live line. The first
#: progress is shown as soon as the first line: an eval that is over by then needs none.
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
        self._wake = threading.Event()
        self._settled = False
        self._over = False
        self._closing: Closing | None = None
        self._thread: threading.Thread | None = None
        self._named = False
        self._linked: str | None = None
        #: What the progress artifact says at the end, once it does.
        self._percent_shown: float | None = None
        self._server: ExitStack | None = None
        self._client: SyncPrefectClient | None = None
        #: Whether the flow run's own client will do; not after a failure, for it may be closed.
        self._shared = True

    # -- for the session -----------------------------------------------------------------

    def start(self) -> None:
        """Begin to show the eval; again at each attempt."""
        if self._thread is None:
            self._begin()

    def settle(self) -> None:
        """Everything that can be sent has been: what will not change any more can be shown while
        the evaluation is being closed.
        """
        self._settled = True
        self._wake.set()

    def finish(self, closing: Closing | None) -> None:
        """Show what came out, if anything did, and be done; waits for a few seconds at most."""
        self._closing = closing
        if self._thread is None and closing is not None:
            self._begin()
        self._over = True
        self._wake.set()
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
                if not self._over:
                    terminal = Terminal(name_for(self._session.plan))
                    self._watch(terminal)
                if (closing := self._closing) is not None:
                    self._ask(lambda client: self._show_end(client, closing))
        except Exception as error:  # noqa: BLE001 - nothing here is worth an eval
            self._session.log.debug("The eval is not shown any more: %r", error)
        finally:
            if terminal is not None:
                terminal.close()
            self._disconnect()

    def _watch(self, terminal: Terminal) -> None:
        self._ask(self._show_beginning)
        told = time.monotonic()
        updated = -_UPDATE
        pause = _DRAW
        while not self._is_over_after(pause):
            pause = _DRAW if terminal.is_live else _UPDATE
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
                if self._settled or now - updated >= _UPDATE:
                    updated = now
                    self._ask(lambda client: self._show(client, progress))  # noqa: B023 - called at once

    def _is_over_after(self, pause: float) -> bool:
        self._wake.wait(pause)
        self._wake.clear()
        return self._over

    def _ask(self, show: Callable[[SyncPrefectClient], None]) -> None:
        """Do something with the Prefect server, if it answers."""
        for shared in (True, False) if self._shared else (False,):
            try:
                if self._client is None:
                    self._server = ExitStack()
                    self._client = self._server.enter_context(connected(shared=shared))
                show(self._client)
            except Exception as error:  # noqa: BLE001 - the next update may get through
                self._session.log.debug("The Prefect server did not take what is shown: %r", error)
                self._shared = False
                self._disconnect()
            else:
                return

    def _disconnect(self) -> None:
        self._client, server, self._server = None, self._server, None
        if server is not None:
            server.close()

    def _show_beginning(self, client: SyncPrefectClient) -> None:
        if not self._named:
            opened = self._session.evaluation is not None and not self._session.plan.evaluation_id
            if not opened:  # else that told the server
                rename_flow_run(self._session.flow_run, client)
            self._named = True
        self._show_link(client)

    def _show(self, client: SyncPrefectClient, progress: Progress) -> None:
        self._show_beginning(client)
        self._percent_shown = progress.percent if self._settled else None
        self._artifacts.put(
            client, "prime-progress", "progress", progress.percent, progress.description()
        )
        if self._settled:
            self._settled = False  # unless it is said again: a retry may follow
            self._show_uploads(client, uploads(self._session.spool))

    def _show_uploads(self, client: SyncPrefectClient, rows: Sequence[Row]) -> None:
        table = json.dumps(list(rows) or [{"note": "nothing was logged"}])  # as Prefect's own are
        self._artifacts.put(client, "prime-uploads", "table", table, "Uploads by segment and sink")

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
        self._show_beginning(client)
        text, about = summary.markdown(closing), summary.description(closing)
        put = self._artifacts.put
        put(client, "prime-summary", "markdown", text, about, key=_key(closing))
        self._show_uploads(client, closing.uploads)
        done = 100.0 if closing.title == "Completed" else self._percent(closing)
        if done != self._percent_shown or closing.title != "Completed":
            put(client, "prime-progress", "progress", done, about)

    def _percent(self, closing: Closing) -> float:
        expected = closing.plan.expected
        return min(100.0, 100 * closing.episodes / expected) if expected else 0.0


def close_event(session: "Session", ending: Ending, closing: Closing) -> None:
    """Say that the evaluation was closed."""
    if closing.evaluation is not None and closing.status is not None:
        emit_for(session, events.what_for(ending, closing.status), closing.payload())
        if closing.regressed:
            emit_for(session, "regressed", closing.payload())


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
