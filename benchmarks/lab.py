"""Where measurements are made: one stub, one Prefect server, and a home that is thrown away."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.stub import Mode, Stub, set_mode

ROOT = Path(__file__).parents[1]
#: Seconds after which a measurement hangs.
_PATIENCE = 1_200
#: Lines of a failed measurement's output that are shown.
_SHOWN = 40


class Row(NamedTuple):
    """One row of the table. ``met`` is None where there is no bar."""

    measure: str
    workload: str
    ours: str
    bare: str = ""
    opponent: str = ""
    bar: str = ""
    reached: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class Lab:
    """``scale`` is a factor of every amount of data; ``rounds`` is how often each is measured."""

    folder: Path
    url: str
    environment: Mapping[str, str]
    scale: float
    rounds: int

    def scaled(self, amount: int, *, least: int = 1) -> int:
        """So much of an amount of data."""
        return max(least, round(amount * self.scale))

    def run(
        self,
        function: str,
        *,
        mode: Mode = "healthy",
        settings: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Measure in a process of its own: ``module:function`` of this package, what it returns.

        ``settings`` are environment variables; ``mode`` is how the stub behaves.
        """
        set_mode(self.url, mode)
        result = self.folder / "result.json"
        result.unlink(missing_ok=True)
        output = self.folder / "output.log"
        command = [sys.executable, "-m", "benchmarks.child", f"benchmarks.{function}"]
        with output.open("wb") as log:
            done = subprocess.run(
                [*command, json.dumps(arguments), str(result)],
                cwd=ROOT,
                env={**self.environment, **(settings or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=_PATIENCE,
                check=False,
            )
        if done.returncode != 0:
            last = output.read_text(errors="replace").splitlines()[-_SHOWN:]
            raise RuntimeError("\n".join([f"{function}({arguments}) failed:", *last]))
        returned: dict[str, Any] = json.loads(result.read_bytes()) if result.exists() else {}
        return returned


@contextmanager
def open_lab(scale: float, rounds: int) -> Iterator[Lab]:
    """A lab for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="prefect-prime-bench-") as folder:
        ours = ("PRIME_", "PREFECT_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        kept |= {
            "HOME": folder,
            "PREFECT_HOME": f"{folder}/prefect",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
        os.environ.clear()
        os.environ.update(kept)  # before Prefect is imported: it reads its home then
        from prefect.settings import PREFECT_API_URL
        from prefect.testing.utilities import prefect_test_harness

        with prefect_test_harness(server_startup_timeout=120), Stub() as stub:
            environment = {
                **kept,
                "PREFECT_API_URL": PREFECT_API_URL.value(),
                "PRIME_API_KEY": "bench",
                "PRIME_API_BASE_URL": stub.url,
                "PRIME_TRACES_URL": stub.url,
            }
            yield Lab(Path(folder), stub.url, environment, scale, rounds)
