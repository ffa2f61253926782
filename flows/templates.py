"""Strings over a flow's parameters, as in Prefect's ``flow_run_name``."""

import os.path
from collections.abc import Mapping
from pathlib import PurePath
from string import Formatter
from typing import Any

from prefect_prime.errors import ConfigurationError


def render(option: str, template: Any, parameters: Mapping[str, Any]) -> Any:
    """``template`` with the flow's parameters filled in, through lists and mappings too.

    What is no string comes back as it is. Raises ``ConfigurationError`` naming the option
    for a template that cannot be filled.
    """
    if isinstance(template, str):
        return _fill(option, template, parameters)
    if isinstance(template, Mapping):
        return {key: render(option, value, parameters) for key, value in template.items()}
    if isinstance(template, list | tuple):
        return [render(option, value, parameters) for value in template]
    return template


def render_path(option: str, template: str, parameters: Mapping[str, Any]) -> str:
    """``template`` filled in, as a path that no parameter can lead astray.

    What stands before the first placeholder names the folder that the path stays below; a
    template that begins with one leaves the path to that parameter. Raises as ``render`` does.
    """
    filled = _fill(option, template, parameters)
    before = ""
    for literal, placeholder, *_ in Formatter().parse(template):
        before += literal
        if placeholder is not None:
            break
    else:
        return filled
    if not before:
        return filled
    folder = PurePath(os.path.normpath(os.path.dirname(before))).parts  # noqa: PTH120 - pathlib keeps ".."
    parts = PurePath(os.path.normpath(filled)).parts
    if parts[: len(folder)] == folder and ".." not in parts[len(folder) :]:
        return filled
    raise ConfigurationError(
        f"{option}={template!r}: {filled!r} leads out of the folder that stands before the first"
        " placeholder. A template that begins with a placeholder may lead anywhere."
    )


def _fill(option: str, template: str, parameters: Mapping[str, Any]) -> str:
    try:
        return Formatter().vformat(template, (), parameters)
    except (KeyError, IndexError) as error:
        known = ", ".join(parameters) or "none"
        reason = f"the flow has no parameter {str(error).strip(chr(39))!r} (it has: {known})"
    except (ValueError, AttributeError, TypeError) as error:
        reason = str(error)
    raise ConfigurationError(
        f"{option}={template!r} cannot be filled in: {reason}. Templates are filled as in"
        " flow_run_name; write {{ and }} for braces of your own."
    )
