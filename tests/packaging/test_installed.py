"""The wheel in an environment of its own, beside a project that has its own `flows`."""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

Run = Callable[[str], dict[str, str]]


@pytest.fixture(scope="module")
def environment(
    tmp_path_factory: pytest.TempPathFactory, wheel: Path, run_uv: Callable[..., None]
) -> Path:
    """A fresh environment with the wheel in it; returns its interpreter.

    The dependencies are this environment's own, put on the path; the editable installation
    of this project is not among them, because a `.pth` file there is not read.
    """
    folder = tmp_path_factory.mktemp("installed")
    run_uv("venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    run_uv("pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, wheel)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Run:
    """Run code in a project with `flows` and `tasks` of its own; returns the JSON it prints."""
    for name in ("flows", "tasks"):
        package = tmp_path / "project" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"OWNER = 'the project, {name}'\n")

    def ran(code: str) -> dict[str, str]:
        done = subprocess.run(
            [environment, "-c", dedent(code)],
            cwd=tmp_path / "project",
            env={"HOME": str(tmp_path), "PREFECT_HOME": str(tmp_path / "prefect")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, str] = json.loads(done.stdout)
        return answer

    return ran


def test_a_project_keeps_its_own_flows_and_tasks(run: Run, environment: Path) -> None:
    files = run("""
        import json
        import flows, tasks
        import prefect_prime.blocks, prefect_prime.flows, prefect_prime.tasks
        from prefect_prime.flows import current_run, eval_flow
        assert (flows.OWNER, tasks.OWNER) == ("the project, flows", "the project, tasks")
        ours = (prefect_prime, prefect_prime.blocks, prefect_prime.flows, prefect_prime.tasks)
        print(json.dumps({module.__name__: module.__file__ for module in ours}))
    """)
    assert files
    installed = environment.parents[1]
    assert [file for file in files.values() if not Path(file).is_relative_to(installed)] == []


def test_every_module_is_there_and_imports(run: Run, product: dict[str, Path]) -> None:
    modules = [name.removesuffix(".py").removesuffix("/__init__") for name in product]
    dotted = [module.replace("/", ".") for module in modules if not module.endswith("/__main__")]
    assert run(f"""
        import importlib, json
        print(json.dumps(len([importlib.import_module(name) for name in {dotted!r}])))
    """) == len(dotted)


def test_prefect_finds_the_block_by_the_entry_point(run: Run) -> None:
    found = run("""
        import json, sys
        from prefect.plugins import load_prefect_collections
        from prefect.utilities.dispatch import lookup_type
        from prefect.blocks.core import Block
        module = load_prefect_collections()["prefect_prime"]
        block = lookup_type(Block, "prime-credentials")
        print(json.dumps({"module": module.__name__, "block": block.__name__}))
    """)
    assert found == {"module": "prefect_prime.blocks", "block": "PrimeCredentials"}
