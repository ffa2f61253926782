"""Keeps Prefect's own lines about our task runs out of the log where they say nothing more.

A long eval has thousands of "Finished in state Completed", and an outage has tracebacks for as
long as it lasts; they hide what a person looks for. Such a record is demoted to DEBUG. Nothing
is lost by it: the uploader says once in the flow run's log when a sink is out and when it is back,
and names every record that is not stored, and a failed task run's state holds its exception.
Warnings of our own, and everything of anybody else's tasks, stay.
"""

import logging

from prefect.logging.loggers import get_logger

#: What our tasks are named, and how Prefect's lines begin that are demoted whatever their level.
_UPLOADS = frozenset({"upload traces", "upload samples"})
_OURS = _UPLOADS | {"open evaluation", "close evaluation"}
_FINISHED, _FAILED = "Finished in state", "Task run failed with exception"


def _says_nothing_new(record: logging.LogRecord) -> bool:
    name, text = getattr(record, "task_name", None), str(record.msg)
    if name in _UPLOADS:
        return text.startswith((_FINISHED, _FAILED))
    return name in _OURS and record.levelno == logging.INFO and text.startswith(_FINISHED)


def _demote(record: logging.LogRecord) -> bool:
    """A filter of the logger, because each handler has a level of its own."""
    if not _says_nothing_new(record):
        return True
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def keep_quiet() -> None:
    """From now on, in this process; once or often."""
    logger = get_logger("prefect.task_runs")
    if _demote not in logger.filters:
        logger.addFilter(_demote)
