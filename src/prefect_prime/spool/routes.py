"""Which sinks a record goes to, by its kind and by the account's settings."""

from collections.abc import Mapping
from typing import Literal

from prefect_prime.records import Kind
from prefect_prime.spool.deliveries import Sink

#: ``PREFECT_PRIME_SINKS``. ``traces,samples``: every episode goes to both, for as long as the
#: platform is in transition. ``auto``: to samples only where traces are not enabled.
SinksSetting = Literal["traces,samples", "traces", "samples", "auto"]
Routes = Mapping[Kind, frozenset[Sink]]

_ROUTES: Mapping[SinksSetting, Routes] = {
    "traces,samples": {
        "episode": frozenset({"traces", "samples"}),
        "trace": frozenset({"traces"}),
        "sample": frozenset({"samples"}),
    },
    "traces": {
        "episode": frozenset({"traces"}),
        "trace": frozenset({"traces"}),
        "sample": frozenset(),
    },
    "samples": {
        "episode": frozenset({"samples"}),
        "trace": frozenset(),
        "sample": frozenset({"samples"}),
    },
    "auto": {
        "episode": frozenset({"traces"}),
        "trace": frozenset({"traces"}),
        "sample": frozenset({"samples"}),
    },
}


def routes_for(setting: SinksSetting, *, traces: bool) -> Routes:
    """Where each kind goes; ``traces`` is whether the traces service can be used at all."""
    if traces:
        return _ROUTES[setting]
    if setting == "auto":
        return _ROUTES["samples"]
    return {kind: sinks - {"traces"} for kind, sinks in _ROUTES[setting].items()}
