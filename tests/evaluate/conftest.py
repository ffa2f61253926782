"""Verifiers evaluations that ask a model on this machine, and nobody else."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from toy_model import TOY, Model, write_config

from prefect_prime.local import LocalPlatform


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as running:
        yield running


@pytest.fixture(autouse=True)
def where_things_are(
    platform: LocalPlatform, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The toy environments can be imported, the platform is in the environment."""
    monkeypatch.syspath_prepend(TOY)
    monkeypatch.setenv("TOY_KEY", "toy")
    monkeypatch.chdir(tmp_path)
    credentials = platform.credentials
    monkeypatch.setenv("PRIME_API_KEY", credentials.api_key.get_secret_value())
    monkeypatch.setenv("PRIME_API_BASE_URL", credentials.base_url)
    monkeypatch.setenv("PRIME_TRACES_URL", credentials.traces_url or "")


@pytest.fixture
def write(model: Model, tmp_path: Path) -> Callable[..., Path]:
    """``write(kinds, ...)``: an ``eval.toml`` of tasks of these kinds."""
    return functools.partial(write_config, model, tmp_path / "eval.toml")
