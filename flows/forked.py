"""The end of a fork that leaves the entrypoint it was made in.

Above the entrypoint stands Prefect's engine, which a fork has a copy of: it would set the state of
the parent's flow run, over the parent's own sockets, and go on with what follows the eval.
"""

import os
import sys
import traceback
from typing import NoReturn


def end_fork(error: BaseException | None) -> NoReturn:
    """End this process as multiprocessing ends its forks: no handler of the parent's runs.

    What the fork logged is on the disk, and its guest's lease falls with it.
    """
    status = 0 if error is None else 1
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            status = error.code or 0
        else:
            print(error.code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    elif error is not None:
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 0xFF)
