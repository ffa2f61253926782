"""What many tests stand on: a Prefect server, an embedded platform, and a home of their own."""

import atexit
import functools
import os
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Before Prefect is imported: it reads its home then. Results are stored there.
os.environ["PREFECT_HOME"] = tempfile.mkdtemp(prefix="prefect-prime-tests-")
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
os.environ["DO_NOT_TRACK"] = "1"
atexit.register(shutil.rmtree, os.environ["PREFECT_HOME"], ignore_errors=True)
# Every HTTP client reads all the certificates that this machine trusts, and no test talks TLS:
# thousands of clients, each for more than the request that it then makes.
ssl.create_default_context = functools.cache(ssl.create_default_context)

# ruff: noqa: E402 - see above
import pytest
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.testing.utilities import prefect_test_harness
from support import REAL_RUNS, Evaluations

from prefect_prime.local import LocalPlatform

#: The folders whose tests share what takes long to start or to build, and the longest file: they
#: begin first, so that nothing is waited for alone at the end.
TOGETHER = ("deploy", "test_kill_harness.py", "packaging")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests may not be divided between processes: those of a file, or of a folder."""

    def group(item: pytest.Item) -> str:
        path = item.path.relative_to(Path(__file__).parent)
        return path.parts[0] if path.parts[0] in TOGETHER else str(path)

    def turn(item: pytest.Item) -> int:
        return TOGETHER.index(group(item)) if group(item) in TOGETHER else len(TOGETHER)

    items.sort(key=turn)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))


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
