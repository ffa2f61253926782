"""Two pages for a browser: the evaluations, and one of them. They need no key.

Whatever a producer wrote is text here: templates escape everything and the pages allow no
script.
"""

from typing import Any

import jinja2
import orjson
from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from prefect_prime.local.evaluations import find, recent, view
from prefect_prime.local.wire import CurrentPlatform

router = APIRouter(default_response_class=HTMLResponse)

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("prefect_prime.local"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


def _html(template: str, **values: Any) -> HTMLResponse:
    return HTMLResponse(_TEMPLATES.get_template(template).render(**values), headers=_HEADERS)


@router.get("/")
def index(platform: CurrentPlatform) -> HTMLResponse:
    """The newest evaluations."""
    with platform.store.read() as connection:
        evaluations = [view(platform, row) for row in recent(connection)]
    return _html("index.html", evaluations=evaluations)


@router.get("/dashboard/evaluations/{evaluation_id}")
def evaluation(platform: CurrentPlatform, evaluation_id: str) -> HTMLResponse:
    """One evaluation: status, error, metrics, number of samples and its config."""
    with platform.store.read() as connection:
        shown = view(platform, find(connection, evaluation_id))
    return _html(
        "evaluation.html",
        evaluation=shown,
        metrics=_flat(shown["metrics"] or {}),
        config=_config(shown["metadata"] or {}),
    )


def _flat(metrics: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in metrics.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, value))
    return rows


def _config(metadata: dict[str, Any]) -> str:
    source = metadata.get("config_source")
    if isinstance(source, dict) and isinstance(source.get("text"), str):
        return str(source["text"])
    return orjson.dumps(metadata, option=orjson.OPT_INDENT_2).decode()
