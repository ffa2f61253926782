"""An eval by the test's own name, its account, and processes that run one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from eval_processes import EvalProcesses
from left_behind import Evals
from support import account

from prefect_prime.flows import EvalResult, EvalRun, current_run, eval_flow
from prefect_prime.local import LocalPlatform


@pytest.fixture
def name() -> str:
    """The name of the test's evaluations, or what it begins with."""
    return f"eval-{uuid4().hex[:8]}"


@pytest.fixture
def tracked(platform: LocalPlatform, name: str) -> Any:
    """``eval_flow``, for an evaluation of that name on the embedded platform."""

    def decorate(**options: Any) -> Any:
        options = {"credentials": platform.credentials, **options}
        return eval_flow(environments=["toy"], evaluation_name=name, **options)

    return decorate


@pytest.fixture(name="account")
def account_of_the_environment(platform: LocalPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment holds the credentials of the embedded platform."""
    for variable, value in account(platform.credentials).items():
        monkeypatch.setenv(variable, value)


@pytest.fixture
def spool_dir(own_home: Path) -> Path:
    """Where spools lie by default."""
    return own_home / ".prefect-prime" / "spool"


@pytest.fixture
def nobody() -> str:
    """The URL of a platform that is not there."""
    with LocalPlatform() as away:
        return away.url


@pytest.fixture
def evaluate(platform: LocalPlatform) -> Callable[..., EvalResult]:
    """``evaluate(body)``: run a function of the run as an eval."""

    def run(body: Callable[[EvalRun], None], **options: Any) -> EvalResult:
        options = {"credentials": platform.credentials, **options}

        @eval_flow(environments=["toy"], **options)
        def entrypoint() -> None:
            body(current_run())

        result: EvalResult = entrypoint()
        return result

    return run


@pytest.fixture(scope="session")
def eval_processes(
    prefect_server: None,  # noqa: ARG001 - the evals need it; a fixture takes no usefixtures
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EvalProcesses]:
    """Scripts in processes of their own, which know the tests' Prefect server."""
    started = EvalProcesses(tmp_path_factory.mktemp("evals"))
    yield started
    started.close()


@pytest.fixture
def evals(eval_processes: EvalProcesses, tmp_path: Path) -> Evals:
    """Evals to be killed."""
    return Evals(eval_processes, tmp_path)
