"""A flow run's name that tells environment and model, where nobody chose one.

Prefect marks nowhere whether a name was chosen. But one that it makes up itself is an
adjective and a noun of its own word list, so only such a name is replaced; and where the flow
has a ``flow_run_name``, none is.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from prefect.client.schemas.objects import FlowRun

from prefect_prime.flows.markdown import shorten
from prefect_prime.flows.options import EvalPlan

#: Characters of a name at most.
_LONGEST = 120


def name_for(plan: EvalPlan) -> str:
    """``environment · model``, with the others of several environments."""
    parts = [ref.dataset or ref.id or "" for ref in plan.spec.environments]
    named = " + ".join(part for part in parts if part) or plan.spec.name
    return shorten(" · ".join(part for part in (named, plan.spec.model) if part), _LONGEST)


def name_flow_run(flow_run: FlowRun, plan: EvalPlan) -> None:
    """Name a flow run here, if nobody did; the server is told with its next update."""
    if was_made_up(flow_run.name):
        flow_run.name = name_for(plan)


def was_made_up(name: str) -> bool:
    """Whether Prefect itself makes up such names."""
    words = name.split("-")
    adjectives, nouns = _words()
    return len(words) == 2 and words[0] in adjectives and words[1] in nouns  # noqa: PLR2004 - what generate_slug(2) gives


@cache
def _words() -> tuple[frozenset[str], frozenset[str]]:
    """The words of ``prefect.utilities.names``; none where another version has others."""
    try:
        from coolname import data  # noqa: PLC0415 - thousands of words, needed once
    except ImportError:
        return frozenset(), frozenset()
    config: Mapping[str, Any] = data.config
    try:
        first, second = config[config["2"]["lists"][0]]["lists"]
        return frozenset(_expanded(config, first)), frozenset(_expanded(config, second))
    except (KeyError, ValueError, TypeError, IndexError):
        return frozenset(), frozenset()


def _expanded(config: Mapping[str, Any], name: str) -> set[str]:
    entry = config[name]
    if "words" in entry:
        return set(entry["words"])
    if "lists" in entry:
        return set().union(*(_expanded(config, each) for each in entry["lists"]))
    return {entry["value"]} if "value" in entry else set()
