"""The folders are the architecture: imports point one way, and are absolute."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

#: From the lowest; a layer imports from itself and from those before it.
LAYERS = ("prefect_prime", "prefect_prime.blocks", "prefect_prime.tasks", "prefect_prime.flows")
#: A command that lies where people look for it, and is carried out by the layer that can.
DOORS = {("prefect_prime/check.py", "prefect_prime.flows.check")}


def layer_of(module: str) -> str:
    """The layer of a module, by the longest name that it lies under."""
    return max(
        (layer for layer in LAYERS if f"{module}.".startswith(f"{layer}.")),
        key=len,
    )


def layer_of_file(name: str) -> str:
    return layer_of(name.removesuffix(".py").replace("/", "."))


def imported(file: Path) -> Iterator[str]:
    """Every name that a file imports, wherever it does so; `from a import b` as ``a.b``."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", None))
            if name in {"import_module", "__import__", "run_module"} and node.args:
                given = node.args[0]
                yield given.value if isinstance(given, ast.Constant) else "<computed>"


def test_imports_point_one_way(product: dict[str, Path]) -> None:
    upward = [
        f"{name} imports {target}"
        for name, file in product.items()
        for target in imported(file)
        if target.startswith("prefect_prime")
        and (name, target) not in DOORS
        and LAYERS.index(layer_of(target)) > LAYERS.index(layer_of_file(name))
    ]
    assert upward == []


def is_prefect(module: str) -> bool:
    """Whether a module is Prefect's or an integration's, or may be: its name is computed."""
    top = module.split(".", maxsplit=1)[0]
    return module == "<computed>" or (top.startswith("prefect") and top != "prefect_prime")


def test_the_lowest_layer_knows_no_prefect_even_lazily(product: dict[str, Path]) -> None:
    knowing = [
        f"{name} imports {target}"
        for name, file in product.items()
        if layer_of_file(name) == "prefect_prime"
        for target in imported(file)
        if is_prefect(target)
    ]
    assert knowing == []


def test_nothing_is_imported_by_the_bare_name_of_a_folder(product: dict[str, Path]) -> None:
    bare = [
        f"{name} imports {target}"
        for name, file in product.items()
        for target in imported(file)
        if target.split(".")[0] in {"flows", "tasks", "blocks", "src", "support"}
    ]
    assert bare == []


def test_imports_are_absolute(product: dict[str, Path]) -> None:
    relative = [
        f"{name}:{node.lineno}"
        for name, file in product.items()
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


@pytest.mark.parametrize("reference", ["prime_runs", "prime_evals", "pytest"])
def test_the_product_never_imports_a_reference(product: dict[str, Path], reference: str) -> None:
    using = [
        name
        for name, file in product.items()
        if any(target.split(".")[0] == reference for target in imported(file))
    ]
    assert using == []
