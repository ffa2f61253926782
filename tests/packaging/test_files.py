"""Every file of the product is one thing of a readable size, and knows no machine."""

import ast
import re
from pathlib import Path

#: Lines, at most: beyond that a file holds more than one thing.
LONGEST = 450
#: Absolute paths of somebody's own folders.
OF_A_MACHINE = re.compile(r"(?<![\w.~$}-])/(?:root|work|home/\w+|Users/\w+|tmp/\w+)(?![\w-])")


def test_every_python_file_has_between_1_and_450_lines(product: dict[str, Path]) -> None:
    lengths = {name: len(file.read_bytes().splitlines()) for name, file in product.items()}
    assert {name: lines for name, lines in lengths.items() if not 1 <= lines <= LONGEST} == {}


def test_every_module_says_what_it_is(product: dict[str, Path]) -> None:
    silent = [
        name
        for name, file in product.items()
        if not ast.get_docstring(ast.parse(file.read_bytes()))
    ]
    assert silent == []


def test_no_file_names_a_path_of_a_machine(packaged: dict[str, Path], root: Path) -> None:
    around = [
        root / name
        for name in (
            ".ci/run",
            "LICENSE",
            "Makefile",
            "README.md",
            "prefect.yaml",
            "pyproject.toml",
        )
    ]
    files = [*packaged.values(), *around, *root.glob("docs/**/*.md"), *root.glob("*.md")]
    assert [
        f"{file.relative_to(root)}: {found[0]}"
        for file in files
        if (found := OF_A_MACHINE.search(file.read_text()))
    ] == []
