"""One live line in a terminal, below what Prefect logs there.

It is drawn on the very console that Prefect logs to, so that log lines scroll above it; nobody's
stdout or stderr is touched. Without a terminal, and in notebooks, there is none: there the log
says each minute how far the eval is.
"""

import logging
import os
import sys

from rich.console import Console
from rich.errors import LiveError
from rich.live import Live
from rich.text import Text

from prefect_prime.flows.progress import Progress

_BAR = 24


class Terminal:
    """The line of one eval; ``None`` of it is there where nobody would see it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._live: Live | None = None
        console = _console()
        if console is None:
            return
        try:
            self._live = Live(
                console=console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        except LiveError:  # another one is drawn there: an eval inside an eval, or the user's own
            self._live = None

    @property
    def is_live(self) -> bool:
        """Whether somebody may see it."""
        return self._live is not None

    def show(self, progress: Progress) -> None:
        """Draw it anew."""
        if self._live is None:
            return
        done = round(_BAR * progress.percent / 100)
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(self._name, style="bold")
        if progress.expected:
            line.append("  ").append("━" * done, style="green").append("━" * (_BAR - done), "dim")
            line.append(f" {progress.percent:.0f} %")
        line.append(f"  {' · '.join(progress.parts())}")
        for upload in progress.uploads():
            line.append(f"  {upload}", style="yellow" if progress.outages else "dim")
        self._live.update(line, refresh=True)

    def close(self) -> None:
        """Take it away."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _console() -> Console | None:
    """The console that Prefect logs to, if it is a terminal."""
    if "ipykernel" in sys.modules or os.environ.get("TERM") == "dumb":
        return None
    logger: logging.Logger | None = logging.getLogger("prefect.flow_runs")
    while logger is not None:
        for handler in logger.handlers:
            console = getattr(handler, "console", None)
            if isinstance(console, Console):
                # Not by `is_terminal` alone: FORCE_COLOR makes that true for a file.
                is_seen = console.is_terminal and console.file.isatty()
                return console if is_seen and not console.is_jupyter else None
        logger = logger.parent if logger.propagate else None
    return None
