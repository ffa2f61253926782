"""The public API is a contract: these names, from these modules."""

import importlib
import inspect
from pathlib import Path

import pytest

#: Modules whose whole offer is the contract.
EXACTLY = {
    "prefect_prime.blocks": {"PrimeCredentials"},
    "prefect_prime.flows": {"EvalResult", "EvalRun", "Gate", "current_run", "eval_flow"},
}
#: Modules that offer these names among others.
AMONG_OTHERS = {
    "prefect_prime.records": {"episode"},
    "prefect_prime.metrics": {"RunSummary", "from_episodes"},
    "prefect_prime.local": {"LocalPlatform"},
    "prefect_prime.errors": {
        "ConfigurationError",
        "EnvironmentResolutionError",
        "RunFinishedError",
    },
}


@pytest.mark.parametrize("module", EXACTLY)
def test_a_package_offers_the_contract_and_no_more(module: str) -> None:
    assert set(importlib.import_module(module).__all__) == EXACTLY[module]


@pytest.mark.parametrize("module", AMONG_OTHERS)
def test_a_module_offers_the_contract(module: str) -> None:
    assert AMONG_OTHERS[module] <= set(importlib.import_module(module).__all__)


def test_every_offered_name_is_there_once_and_in_order(product: dict[str, Path]) -> None:
    names = [name.removesuffix(".py").removesuffix("/__init__") for name in product]
    modules = [
        importlib.import_module(name.replace("/", "."))
        for name in names
        if not name.endswith("/__main__")
    ]
    offering = [module for module in modules if hasattr(module, "__all__")]
    assert offering
    assert [
        f"{module.__name__}.{name}"
        for module in offering
        for name in module.__all__
        if not hasattr(module, name)
    ] == []
    assert [
        module.__name__ for module in offering if len(set(module.__all__)) != len(module.__all__)
    ] == []


def test_every_class_and_function_of_the_contract_is_documented() -> None:
    names = {**EXACTLY, **AMONG_OTHERS}
    assert [
        f"{module}.{name}"
        for module in names
        for name in names[module]
        if not inspect.getdoc(getattr(importlib.import_module(module), name))
    ] == []
