"""What many tests stand on: a Prefect server, an embedded platform, and a home of their own."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Before Prefect is imported: it reads its home then. Results are stored there.
os.environ["PREFECT_HOME"] = tempfile.mkdtemp(prefix="prefect-prime-tests-")
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
os.environ["DO_NOT_TRACK"] = "1"
atexit.register(shutil.rmtree, os.environ["PREFECT_HOME"], ignore_errors=True)

# ruff: noqa: E402 - see above
import pytest
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.testing.utilities import prefect_test_harness
from support import REAL_RUNS, Evaluations

from prefect_prime.local import LocalPlatform


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees this machine's settings, nor leaves a spool behind on it."""
    for name in list(os.environ):
        if name.startswith(("PRIME_", "PREFECT_PRIME_")) or name == "EVALUATION_ID":
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """One Prefect server for all tests; its first start takes seconds."""
    with (
        prefect_test_harness(server_startup_timeout=120),
        # Joining the heartbeat thread costs a second at the end of every flow run.
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
    ):
        yield


@pytest.fixture(scope="session")
def platform() -> Iterator[LocalPlatform]:
    """One embedded platform for all tests that need no mode of their own."""
    with LocalPlatform() as running:
        yield running


@pytest.fixture
def evaluations(platform: LocalPlatform) -> Iterator[Evaluations]:
    """What the platform has, read over its API."""
    with platform.credentials.get_client() as client:
        yield Evaluations(client)


@pytest.fixture(params=REAL_RUNS, ids=lambda folder: folder.name)
def real_run(request: pytest.FixtureRequest) -> Path:
    """Each folder of genuine verifiers output that has reference values."""
    folder: Path = request.param
    return folder
