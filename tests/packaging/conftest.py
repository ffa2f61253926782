"""The project's files, and what is built from a copy of them."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
from uv import find_uv_bin

ROOT = Path(__file__).parents[2]
#: Where each import package lies in the source tree.
FOLDERS = {
    "prefect_prime": ROOT / "src" / "prefect_prime",
    "prefect_prime/blocks": ROOT / "blocks",
    "prefect_prime/tasks": ROOT / "tasks",
    "prefect_prime/flows": ROOT / "flows",
}
#: What a build reads beside those folders.
FILES = ("pyproject.toml", "README.md", "LICENSE")


def files_below(folder: Path) -> list[Path]:
    """The folder's own files: none that a link leads to, none that an interpreter left."""
    found = [each for each in folder.iterdir() if not each.is_symlink()]
    below = [
        file
        for each in found
        if each.is_dir() and each.name != "__pycache__"
        for file in files_below(each)
    ]
    return sorted([each for each in found if each.is_file()] + below)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def packaged() -> dict[str, Path]:
    """Every file of the product, by its path when installed."""
    return {
        f"{package}/{file.relative_to(folder).as_posix()}": file
        for package, folder in FOLDERS.items()
        for file in files_below(folder)
    }


@pytest.fixture(scope="session")
def product(packaged: dict[str, Path]) -> dict[str, Path]:
    """Every Python file of the product, by its path when installed."""
    return {name: file for name, file in packaged.items() if file.suffix == ".py"}


@pytest.fixture(scope="session")
def run_uv() -> Callable[..., None]:
    def run(*arguments: object) -> None:
        done = subprocess.run(
            [find_uv_bin(), *map(str, arguments)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture(scope="session")
def build(
    tmp_path_factory: pytest.TempPathFactory, run_uv: Callable[..., None]
) -> Callable[..., Path]:
    """``build(links=...)``: build a copy of the project, with or without its three links.

    With links as `make wheel` does it, the sdist and from that the wheel; without them the
    wheel alone. Returns the folder that they are in.
    """

    def built(*, links: bool) -> Path:
        folder = tmp_path_factory.mktemp("project")
        left_out = ["__pycache__", *(() if links else ("flows", "tasks", "blocks"))]
        for name in FILES:
            (folder / name).write_bytes((ROOT / name).read_bytes())
        copytree(ROOT / "src", folder / "src", symlinks=True, ignore=ignore_patterns(*left_out))
        for name in ("flows", "tasks", "blocks"):
            copytree(ROOT / name, folder / name, ignore=ignore_patterns("__pycache__"))
        run_uv("build", "--quiet", *([] if links else ["--wheel"]), folder)
        return folder / "dist"

    return built


@pytest.fixture(scope="session")
def distributions(build: Callable[..., Path]) -> Path:
    """The folder of the sdist, and of the wheel that was built from it."""
    return build(links=True)


@pytest.fixture(scope="session")
def wheel(distributions: Path) -> Path:
    (found,) = distributions.glob("*.whl")
    return found
