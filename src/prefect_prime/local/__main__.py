"""``python -m prefect_prime.local``: the embedded platform in the foreground.

It prints where it is and how to point clients at it, and ends on Ctrl-C or SIGTERM with
exit status 0. A key that it was given is never printed, one that it made is.
"""

import argparse
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from types import FrameType

from prefect_prime.local.faults import Faults
from prefect_prime.local.platform import LocalPlatform
from prefect_prime.local.rules import MODE_VALUES, Modes

#: Holds the key when ``--api-key`` does not; the clients read it too.
API_KEY_VARIABLE = "PRIME_API_KEY"
#: Where the clients look for the platform.
URL_VARIABLES = ("PRIME_API_BASE_URL", "PRIME_TRACES_URL", "PRIME_FRONTEND_URL")
DEFAULT_PORT = 8765

_MODE_HELP = {
    "status_updates": "what a PUT of a status does",
    "closed_samples": "samples for a closed evaluation",
    "duplicate_traces": "a stored trace or episode id in other bytes",
    "traces": "Prime Traces for this account",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m prefect_prime.local",
        description="Serve the platform's API on this machine.",
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="0 takes a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--data", metavar="DIR", help="keep the data here (default: a temporary directory)"
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"(default: ${API_KEY_VARIABLE}, else a new one)"
    )
    parser.add_argument(
        "--publish",
        metavar="OWNER/NAME",
        action="append",
        default=[],
        help="publish an environment; may be repeated",
    )
    parser.add_argument(
        "--faults",
        metavar="SPEC",
        help='misbehave: "seed=7" for some of everything, or by route, as in '
        '"seed=7; POST /traces=502 after@0.1,slow 2@0.05; *=429 retry-after=1@0.02"; '
        "python -m pydoc prefect_prime.local.faults explains it, and .fault the faults",
    )
    for name, values in MODE_VALUES.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            choices=values,
            default=getattr(Modes(), name),
            help=f"{_MODE_HELP[name]} (default: %(default)s)",
        )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; returns the exit status."""
    options = _parser().parse_args(arguments)
    given_key = options.api_key or os.environ.get(API_KEY_VARIABLE)
    try:
        platform = LocalPlatform(
            options.data,
            options.port,
            api_key=given_key,
            faults=None if options.faults is None else Faults.parse(options.faults),
            **{name: getattr(options, name) for name in MODE_VALUES},
        )
        with platform:
            for slug in options.publish:
                platform.publish_environment(slug)
            _announce(platform, is_key_given=bool(given_key))

            def stop(_number: int, _frame: FrameType | None) -> None:
                platform.stop()

            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, stop)
            platform.wait()
    except (OSError, ValueError, sqlite3.Error) as exc:
        print(f"The platform cannot start: {exc}", file=sys.stderr)  # noqa: T201 - a command
        return 1
    return 0


def _announce(platform: LocalPlatform, *, is_key_given: bool) -> None:
    lines = [
        f"The local platform is at {platform.url} and keeps its data in {platform.directory}.",
        "Point clients at it:",
        "",
        *(f"  export {name}={platform.url}" for name in URL_VARIABLES),
    ]
    if is_key_given:
        lines.append(f"  export {API_KEY_VARIABLE}=<the key that you gave>")
    else:
        key = platform.credentials.api_key.get_secret_value()
        lines.append(f"  export {API_KEY_VARIABLE}={key}")
    lines += ["", "Ctrl-C ends it."]
    print("\n".join(lines), flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main())
