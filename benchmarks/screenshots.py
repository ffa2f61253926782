"""What an eval looks like in Prefect's two UIs: screenshots, to be looked at by a person.

``python benchmarks/screenshots.py`` starts a Prefect server and an embedded platform of its own,
runs one eval that completes and one that fails, with values that try to break out of their place,
and has headless Chromium write the pages to ``build/screenshots``.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

PORT = 4799
SERVER = f"http://127.0.0.1:{PORT}"
OUT = Path(__file__).resolve().parents[1] / "build" / "screenshots"
HOSTILE = "</code><script>alert(1)</script> | `x` ```\n# owned\n[a](javascript:alert(1)) **b**"


@contextmanager
def server(home: str) -> Iterator[None]:
    """A Prefect server with a new database, whose pages know where they are."""
    os.environ |= {
        "HOME": home,
        "PREFECT_HOME": home,
        "PREFECT_API_URL": f"{SERVER}/api",
        "PREFECT_UI_API_URL": f"{SERVER}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(PORT)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{SERVER}/api/health").is_success:
                    break
            time.sleep(0.5)
        yield
    finally:
        running.terminate()
        running.wait()


def run_evals() -> dict[str, str]:
    """By name: the ids of the flow runs."""
    from prefect_prime.flows import current_run, eval_flow
    from prefect_prime.local import LocalPlatform
    from prefect_prime.records import episode

    chance = random.Random(1)

    def log(count: int, message: str) -> None:
        for number in range(count):
            error = {"type": "JudgeTimeout", "message": message} if number % 23 == 0 else None
            current_run().log_episodes(
                [
                    episode(
                        [{"role": "user", "content": f"question {number}"}],
                        rewards=None if error else {"judge": chance.betavariate(4, 2)},
                        metrics={"tokens": 1000.0 + number, "pass@1": float(number % 2)},
                        error=error,
                        example_id=number,
                    )
                ]
            )

    config = {"config_source": {"format": "toml", "filename": "eval.toml", "text": "n = 400\n"}}
    known: dict[str, str] = {}
    with LocalPlatform() as whole, LocalPlatform(traces="forbidden") as lossy:

        @eval_flow(
            environments=["gsm8k"], model="toy", config=config, credentials=whole.credentials
        )
        def completed() -> None:
            log(400, "no answer within 120 s")

        @eval_flow(
            environments=["a-rather-long-environment-name-v2"],
            model="org/some-model-70b-instruct",
            evaluation_name=f"nightly {HOSTILE}",
            tags=[HOSTILE],
            credentials=lossy.credentials,
        )
        def failed() -> None:
            log(400, HOSTILE)
            current_run().log_episodes([{"id": HOSTILE, "traces": [], "x": object()}])
            raise RuntimeError(f"CUDA out of memory on rank 3 {HOSTILE}")

        for flow in (completed, failed):
            state: Any = flow(return_state=True)
            known[flow.name] = str(state.state_details.flow_run_id)
    return known


def shoot(path: str, name: str, size: str) -> None:
    """One page as one picture."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += [f"--screenshot={OUT / name}.png", f"--window-size={size}"]
    command = [browser, *options, "--virtual-time-budget=15000", f"{SERVER}{path}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    print(OUT / f"{name}.png")


def main() -> None:
    """Take all of them."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, server(home):
        for name, run_id in run_evals().items():
            mine = {"artifacts": {"flow_run_id": {"any_": [run_id]}}}
            found = httpx.post(f"{SERVER}/api/artifacts/filter", json=mine).json()
            shown = {artifact["key"]: artifact["id"] for artifact in found if artifact["key"]}
            summary = next(key for key in shown if key.startswith("prime-summary"))
            for version, prefix in (("v1", ""), ("v2", "/v2")):
                run = f"{prefix}/runs/flow-run/{run_id}?tab=Artifacts"
                artifact = f"{prefix}/artifacts/artifact"
                shoot(run, f"{name}-run-{version}", "1400,1000")
                shoot(f"{artifact}/{shown[summary]}", f"{name}-summary-{version}", "1400,2000")
                shoot(
                    f"{artifact}/{shown['prime-uploads']}", f"{name}-uploads-{version}", "1400,700"
                )


if __name__ == "__main__":
    main()
