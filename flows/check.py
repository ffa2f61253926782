"""``python -m prefect_prime.check``: whether an eval could be tracked, before GPU hours burn."""

import argparse
import logging
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from prefect_prime.flows.access import Check, Mark
from prefect_prime.flows.readiness import checks

_MARKS: dict[Mark, tuple[str, str]] = {
    "good": ("✓", "green"),
    "note": ("!", "yellow"),
    "bad": ("✗", "red"),
}
#: For an output that cannot show them.
_PLAIN: dict[Mark, str] = {"good": "+", "note": "!", "bad": "x"}
_NAME_WIDTH = 13


def main(arguments: Sequence[str] | None = None) -> int:
    """Check everything; returns the exit status: 0 if an eval could be tracked as configured."""
    parser = argparse.ArgumentParser(
        prog="python -m prefect_prime.check",
        description="Check whether an eval could be tracked: credentials, both services, the"
        " Prefect API, the spool. Nothing is written anywhere.",
    )
    parser.add_argument(
        "--credentials",
        metavar="BLOCK",
        help="a Prime Credentials block (default: PRIME_API_KEY, then ~/.prime/config.json)",
    )
    given = parser.parse_args(arguments)
    console = Console(highlight=False)
    failed = 0
    for check in checks(given.credentials):
        failed += check.mark == "bad"
        _show(console, check)
    if failed:
        console.print(f"{failed} to mend.", style="bold red")
    else:
        console.print("Ready.", style="bold green")
    return 1 if failed else 0


def _show(console: Console, check: Check) -> None:
    sign, colour = _MARKS[check.mark]
    if not console.encoding.lower().startswith("utf"):
        sign = _PLAIN[check.mark]
    line = Text.assemble(
        (sign, colour), " ", f"{check.name:<{_NAME_WIDTH}}", _printable(check.text)
    )
    console.print(line, soft_wrap=True)
    if check.advice:
        console.print(
            Text(f"  {'':<{_NAME_WIDTH}}{_printable(check.advice)}", "dim"), soft_wrap=True
        )


def _printable(text: str) -> str:
    """On one line, and nothing that a terminal would obey: a service may have written it."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


if __name__ == "__main__":
    logging.getLogger("prefect_prime").setLevel(logging.ERROR)  # each check says it itself
    sys.exit(main())
