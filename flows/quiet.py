"""Keeps the upload tasks' own "Finished in state Completed" out of the log.

A long eval has thousands of them, and they hide what a person looks for. Such a record is
demoted to DEBUG; warnings and errors of those tasks, and everything of anybody's else, stay.
"""

import logging

from prefect.logging.loggers import get_logger

#: By the names of our tasks.
_OURS = frozenset({"upload traces", "upload samples", "open evaluation", "close evaluation"})


def _demoted(record: logging.LogRecord) -> bool:
    if (
        record.levelno != logging.INFO
        or getattr(record, "task_name", None) not in _OURS
        or not str(record.msg).startswith("Finished in state")
    ):
        return True
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def keep_quiet() -> None:
    """From now on, in this process; once or often."""
    logger = get_logger("prefect.task_runs")
    if _demoted not in logger.filters:
        logger.addFilter(_demoted)
