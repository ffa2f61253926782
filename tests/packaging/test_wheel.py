"""What is installed is the product: all of it, and nothing beside it."""

import tarfile
from collections.abc import Callable
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

LINKS = ("flows", "tasks", "blocks")


def contents(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def about(wheel: Path) -> tuple[str, dict[str, bytes]]:
    """The name of the wheel's metadata folder, and the files in it."""
    found = {
        PurePosixPath(name): data
        for name, data in contents(wheel).items()
        if PurePosixPath(name).parts[0].endswith(".dist-info")
    }
    (folder,) = {name.parts[0] for name in found}
    return folder, {str(name.relative_to(folder)): data for name, data in found.items()}


def test_the_wheel_holds_every_file_of_the_product_and_nothing_else(
    wheel: Path, packaged: dict[str, Path]
) -> None:
    folder, _ = about(wheel)
    assert {name for name in contents(wheel) if not name.startswith(folder)} == set(packaged)


def test_every_file_in_the_wheel_is_the_source_s_own(
    wheel: Path, packaged: dict[str, Path]
) -> None:
    built = contents(wheel)
    assert [name for name, file in packaged.items() if built.get(name) != file.read_bytes()] == []


def test_the_wheel_carries_its_licence_types_and_templates(wheel: Path, root: Path) -> None:
    assert contents(wheel)["prefect_prime/py.typed"] == b""
    assert any(name.startswith("prefect_prime/local/templates/") for name in contents(wheel))
    _, files = about(wheel)
    assert files["licenses/LICENSE"] == (root / "LICENSE").read_bytes()
    assert set(files) == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "top_level.txt",
    }


def test_one_top_level_name_is_installed(wheel: Path) -> None:
    _, files = about(wheel)
    assert files["top_level.txt"].decode().split() == ["prefect_prime"]
    assert {name.split("/")[0] for name in contents(wheel)} == {"prefect_prime", about(wheel)[0]}


def test_the_metadata_says_what_the_package_is(wheel: Path) -> None:
    _, files = about(wheel)
    metadata = HeaderParser().parsestr(files["METADATA"].decode())
    assert metadata["Name"] == "prefect-prime"
    assert metadata["License-Expression"] == "MIT"
    assert set(metadata["Requires-Python"].split(",")) == {">=3.11", "<3.14"}
    assert metadata.get_all("Provides-Extra") == ["verifiers"]
    assert files["entry_points.txt"].decode().split() == [
        "[prefect.collections]",
        "prefect_prime",
        "=",
        "prefect_prime.blocks",
    ]


def test_the_reference_packages_are_no_dependencies(wheel: Path) -> None:
    _, files = about(wheel)
    metadata = HeaderParser().parsestr(files["METADATA"].decode())
    required = [each for each in metadata.get_all("Requires-Dist") or [] if "extra ==" not in each]
    assert required
    judges = ("prime-runs", "prime-evals", "verifiers", "pytest")
    assert [each for each in required if each.startswith(judges)] == []


def test_a_tree_without_the_checkers_links_builds_the_same_wheel(
    wheel: Path, build: Callable[..., Path], root: Path
) -> None:
    source = root / "src" / "prefect_prime"
    assert all((source / name).is_symlink() for name in LINKS)
    (other,) = build(links=False).glob("*.whl")
    assert contents(other) == contents(wheel)


def test_the_source_distribution_holds_every_file_once(
    distributions: Path, packaged: dict[str, Path], root: Path
) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    sources = {file.relative_to(root).as_posix() for file in packaged.values()}
    assert sources <= set(names)
    assert [name for name in names if name.startswith(("tests/", "benchmarks/", "."))] == []
    through_links = tuple(f"src/prefect_prime/{name}/" for name in LINKS)
    assert [name for name in names if name.startswith(through_links)] == []
