"""The store: one folder of spools on one machine, or shared by several.

::

    <root>/store-id
    <root>/<flow run id>/owner/       the spool of the process that owns the evaluation
    <root>/<flow run id>/guest-.../   what another process of the same machine logged into it
    <root>/<flow run id>.<.>/owner/   the spool of a guest on a machine without the owner's store

The store's id tells which store an evaluation's records lie in; a machine that does not see
that store cannot know whether they have all been sent.
"""

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from prefect_prime.errors import SpoolError

_OWNER = "owner"
_REMOVED = ".removed-"


def owner_folder(root: Path, run_id: object) -> Path:
    """Where the spool of a flow run's owner lies."""
    return owner_of(root / str(run_id))


def owner_of(run_folder: Path) -> Path:
    """Where the spool of the owner lies, in a flow run's folder."""
    return run_folder / _OWNER


def away_folder(root: Path, run_id: object) -> Path:
    """A place for the spool of a guest that cannot see the owner's store."""
    return root / f"{run_id}.{os.getpid()}-{uuid.uuid4().hex[:8]}" / _OWNER


def spools(root: Path) -> Iterator[tuple[str, Path]]:
    """Every spool of a store, those of guests of other machines included: the flow run's id,
    and the folder.
    """
    for folder in sorted(root.glob(f"*/{_OWNER}")):
        yield folder.parent.name.partition(".")[0], folder


def remove(folder: Path) -> None:
    """Remove an owner's spool, and its run's folder with it if nobody else is in there.

    Whoever calls this holds its lease. The folder goes under its own name at once: a death in
    the middle leaves no half of a spool, which a later attempt would take for the whole.
    """
    aside = folder.parents[1] / f"{_REMOVED}{uuid.uuid4().hex}"
    try:
        folder.rename(aside)
    except OSError:  # it stays, whole, and is over as its ledger says
        return
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
    shutil.rmtree(aside, ignore_errors=True)


def sweep_out(root: Path) -> None:
    """Remove what a death in the middle of ``remove`` left."""
    for aside in root.glob(f"{_REMOVED}*"):
        shutil.rmtree(aside, ignore_errors=True)


def private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone.

    Raises ``OSError``.
    """
    # `parents=True` would leave the ones above to the umask.
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def store_id(root: Path) -> str:
    """The id of a store, made when it is first asked for. Raises ``SpoolError``."""
    path = root / "store-id"
    try:
        private(root)
        if not path.exists():
            # Linked into place whole: two that ask first agree on one.
            made = root / f".store-id-{os.getpid()}-{uuid.uuid4().hex}"
            descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(descriptor, uuid.uuid4().hex.encode())
            os.close(descriptor)
            with contextlib.suppress(FileExistsError):
                os.link(made, path)
            made.unlink()
        return path.read_text().strip()
    except OSError as error:
        raise SpoolError(
            f"cannot use {root} as a spool: {error.strerror}. Set PREFECT_PRIME_SPOOL_DIR to a"
            " folder that this process may write."
        ) from error
