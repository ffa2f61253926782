"""``eval_flow``: a flow that is a tracked evaluation.

``EvalFlow`` stays a real ``Flow``: deploying, serving, naming and validating go Prefect's
own way. Beyond it there are the options of the evaluation, and one state hook per ending.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, Self, overload

from prefect import Flow
from prefect.utilities.hashing import file_hash

from prefect_prime.errors import ConfigurationError
from prefect_prime.flows.entrypoint import tracked
from prefect_prime.flows.options import EvalOptions, EvalPlan, plan
from prefect_prime.flows.sessions import close_evaluation_of_run

_OPTIONS: Final = frozenset(each.name for each in fields(EvalOptions))
#: The endings that a hook can see; the options of ``prefect.flow`` that take it.
_HOOKS: Final = ("on_completion", "on_failure", "on_cancellation", "on_crashed")


class EvalFlow(Flow[..., Any]):
    """A flow whose runs are evaluations. Made by ``eval_flow``."""

    def __init__(self, fn: Callable[..., Any], options: EvalOptions, **flow_options: Any) -> None:
        inner = getattr(fn, "__func__", fn)  # of a classmethod or staticmethod
        wrapped = tracked(inner)
        source = _source_file(inner)
        if not flow_options.get("version") and source is not None:
            flow_options["version"] = file_hash(str(source))
        kind: Any = (lambda same: same) if fn is inner else type(fn)
        super().__init__(kind(wrapped), **flow_options)
        self.options = options
        self._hook()
        # Prefect reads the entrypoint off the wrapper; it is the user's file that counts.
        if inner.__module__ == "__main__" or inner.__module__.startswith("__prefect_loader_"):
            self._entrypoint = f"{inspect.getfile(inner)}:{inner.__qualname__}"

    def _hook(self) -> None:
        """Our hook goes first: whatever the user's do, the evaluation is closed by then."""
        for name in _HOOKS:
            hooks: list[Any] = getattr(self, f"{name}_hooks")
            others = [hook for hook in hooks if hook is not close_evaluation_of_run]
            setattr(self, f"{name}_hooks", [close_evaluation_of_run, *others])

    def plan(self, parameters: Mapping[str, Any]) -> EvalPlan:
        """What a run with these parameters will open; raises ``ConfigurationError``."""
        source = _source_file(inspect.unwrap(self.fn))
        return plan(self.options, parameters, self.name, source and source.parent)

    def with_options(self, **changes: Any) -> Self:
        """A copy with other options, of ``prefect.flow`` or of ``eval_flow``."""
        own = {name: changes.pop(name) for name in _OPTIONS & changes.keys()}
        if "description" in own:
            changes["description"] = own["description"]
        copied = super().with_options(**changes)
        new = type(self).__new__(type(self))
        vars(new).update(vars(copied))
        new.options = replace(self.options, **own)
        new._hook()  # noqa: SLF001 - an instance of this very class
        return new


@overload
def eval_flow(fn: Callable[..., Any], /) -> EvalFlow: ...
@overload
def eval_flow(**options: Any) -> Callable[[Callable[..., Any]], EvalFlow]: ...
def eval_flow(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a Prefect flow whose runs are evaluations on the platform.

    Works with and without parentheses, on sync and async functions, on generators that
    yield episodes (or lists of them), and on what is a flow already, whose options are kept.
    Of the evaluation (strings are templates over the flow's parameters, as in
    ``flow_run_name``):

    - ``environments``: names, ``owner/name``, or ``{"id": ..., "version_id": ...}``.
    - ``model``, ``framework``, ``tags``: as the platform shows them.
    - ``evaluation_name``: by default the first environment and the model.
    - ``config``: the file the eval is launched with, a path from the working directory or
      beside the flow's file, kept byte for byte; or a mapping, stored as given.
    - ``credentials``: a Prime Credentials block's name, the credentials themselves, or None:
      the environment, then ``~/.prime/config.json``.
    - ``expected``: how many episodes are to come, for progress.
    - ``evaluation_id``: an evaluation that is open already, to log into: nothing of it is
      changed, and whoever opened it closes it. An empty one, or None, opens one as usual.
    - ``gates``: what the evaluation must reach (``Gate``, or mappings with its names), or
      ``"{name}"`` of a parameter that holds them. One that does not hold makes the flow run
      Failed with the name Regressed; the evaluation is COMPLETED, and is not run again.
    - ``baseline``: the id of the evaluation that gates compare with; by default the last
      COMPLETED one of the same flow, environments and model.
    - ``on_error``: ``"warn"`` keeps the platform's trouble out of the eval; ``"raise"`` fails
      the flow run at its end if an upload failed for good.

    Every other option is one of ``prefect.flow``; ``description`` sets both. Raises
    ``ConfigurationError`` for an option that is neither.
    """
    if fn is None:
        return functools.partial(_make, options=options)
    return _make(fn, options=options)


def _make(fn: Callable[..., Any] | Flow[..., Any], *, options: Mapping[str, Any]) -> EvalFlow:
    unknown = options.keys() - _OPTIONS - _FLOW_OPTIONS
    if unknown:
        raise ConfigurationError(
            f"eval_flow has no option {min(unknown)!r}. Of the evaluation:"
            f" {', '.join(sorted(_OPTIONS))}; any other is one of prefect.flow."
        )
    own = EvalOptions(**{name: options[name] for name in _OPTIONS & options.keys()})
    flow_options = {name: value for name, value in options.items() if name in _FLOW_OPTIONS}
    if isinstance(fn, Flow):
        kept = {name: getattr(fn, attribute) for name, attribute in _FLOW_OPTIONS_OF.items()}
        return EvalFlow(fn.fn, own, **{**kept, **flow_options})
    return EvalFlow(fn, own, **flow_options)


_FLOW_OPTIONS: Final = frozenset(inspect.signature(Flow.__init__).parameters) - {"self", "fn"}
#: Where a flow keeps an option, when not under the option's own name.
_FLOW_OPTIONS_OF: Final = {
    name: {
        "validate_parameters": "should_validate_parameters",
        **{hook: f"{hook}_hooks" for hook in (*_HOOKS, "on_running")},
    }.get(name, name)
    for name in _FLOW_OPTIONS
}


def _source_file(fn: Callable[..., Any]) -> Path | None:
    try:
        found = inspect.getsourcefile(fn)
    except TypeError:  # built in, or made in a prompt
        return None
    return Path(found) if found and Path(found).exists() else None
