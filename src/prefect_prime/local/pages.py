"""The pages for a browser: the evaluations, one of them, one episode. They need no key.

What is asked for in an address is taken where it makes sense and passed over where it does
not: a page that somebody changed by hand is still a page. A page of something that is not
here is a 404 that leads back to the list.
"""

import sqlite3
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from prefect_prime.local import pages_conversation, pages_episode, pages_facts, pages_listing
from prefect_prime.local.evaluations import find, view
from prefect_prime.local.pages_charts import stages
from prefect_prime.local.pages_evaluation import evaluation_page, page_number, summary
from prefect_prime.local.pages_render import RAW_HEADERS, html
from prefect_prime.local.pages_rollouts import Rollouts
from prefect_prime.local.wire import HTTP_NOT_FOUND, CurrentPlatform

#: Digits of a position, which SQLite stores.
MAX_DIGITS = 18

router = APIRouter(default_response_class=HTMLResponse)


@router.get("/")
def index(request: Request, platform: CurrentPlatform) -> HTMLResponse:
    """The evaluations that the filters leave, the newest first."""
    given = request.query_params
    filters = {name: given[name] for name in pages_listing.FILTERS if given.get(name)}
    page = page_number(given.get("page"))
    with platform.store.read() as connection:
        total, rows = pages_listing.listed(connection, filters, page)
        choices = pages_listing.choices(connection)
        evaluations = [
            {
                **summary(platform, row),
                "environments": pages_listing.environments_of(connection, row["id"]),
            }
            for row in rows
        ]
    for name, value in filters.items():
        if name in choices and value not in choices[name]:
            choices[name].append(value)
    return html(
        "index.html",
        evaluations=evaluations,
        filters=filters,
        choices=choices,
        total=total,
        page=page,
        pages=-(-total // pages_listing.PAGE),
    )


@router.get("/dashboard/evaluations/{evaluation_id}")
def evaluation(request: Request, platform: CurrentPlatform, evaluation_id: str) -> HTMLResponse:
    """One evaluation."""
    pages_facts.catch_up(platform.store, evaluation_id)
    with platform.store.read() as connection:
        try:
            row = find(connection, evaluation_id)
        except HTTPException:
            return _missing("evaluation", evaluation_id)
        values = evaluation_page(platform, connection, row, request.query_params)
    return html("evaluation.html", **values)


@router.get("/dashboard/evaluations/{evaluation_id}/config")
def config(platform: CurrentPlatform, evaluation_id: str) -> Response:
    """The config as it was launched, byte for byte."""
    with platform.store.read() as connection:
        try:
            shown = view(platform, find(connection, evaluation_id))
        except HTTPException:
            return _missing("evaluation", evaluation_id)
    source = pages_facts.mapping(shown["metadata"]).get("config_source")
    text = pages_facts.mapping(source).get("text")
    if not isinstance(text, str):
        return _missing("config", evaluation_id)
    return Response(text.encode(), media_type="text/plain; charset=utf-8", headers=RAW_HEADERS)


@router.get("/dashboard/evaluations/{evaluation_id}/episode")
def episode(request: Request, platform: CurrentPlatform, evaluation_id: str) -> HTMLResponse:
    """One episode: ``?row=`` the position of a sample, or ``?id=`` an episode's id."""
    pages_facts.catch_up(platform.store, evaluation_id)
    with platform.store.read() as connection:
        try:
            row = find(connection, evaluation_id)
        except HTTPException:
            return _missing("evaluation", evaluation_id)
        found = _found(connection, evaluation_id, request)
        if found is None:
            return _missing("episode", request.url.query)
        rollouts = Rollouts(connection, evaluation_id)
        facts = rollouts.one(found.position, found.record.get("id"))
        beside = [] if facts is None else rollouts.of_example(facts["example"])
        last = row["samples_count"] - 1
        shown = summary(platform, row)
    agents = [
        pages_conversation.agent(trace) for trace in found.traces[: pages_conversation.MAX_AGENTS]
    ]
    is_short = len(found.body) <= pages_conversation.MAX_JSON
    return html(
        "episode.html",
        evaluation=shown,
        facts=facts,
        record=found.record,
        task=_task(found.record),
        errors=pages_conversation.errors_of(found.record),
        agents=[(each, stages(each.timing)) for each in agents],
        hidden_agents=len(found.traces) - len(agents),
        beside=beside if len(beside) > 1 else [],
        position=found.position,
        last=last,
        size=len(found.body),
        json=pages_conversation.pretty(found.body) if is_short else None,
        address=str(request.url.query),
    )


@router.get("/dashboard/evaluations/{evaluation_id}/episode.json")
def episode_json(request: Request, platform: CurrentPlatform, evaluation_id: str) -> Response:
    """The episode as it is stored: its sample, or what Prime Traces has of it."""
    pages_facts.catch_up(platform.store, evaluation_id)
    with platform.store.read() as connection:
        found = _found(connection, evaluation_id, request)
    if found is None:
        return _missing("episode", request.url.query)
    return Response(found.body, media_type="application/json", headers=RAW_HEADERS)


def _found(
    connection: sqlite3.Connection, evaluation_id: str, request: Request
) -> pages_episode.Found | None:
    position = request.query_params.get("row", "")
    if position.isascii() and position.isdigit() and len(position) <= MAX_DIGITS:
        return pages_episode.of_sample(connection, evaluation_id, int(position))
    return pages_episode.of_id(connection, evaluation_id, request.query_params.get("id", ""))


def _task(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the example says of itself, as text."""
    data = pages_facts.mapping(pages_facts.mapping(record.get("task")).get("data"))
    return [
        (name, pages_facts.as_text(value)[: pages_conversation.MAX_TEXT])
        for name, value in data.items()
        if value not in (None, "", [], {})
    ]


def _missing(what: str, asked: str) -> HTMLResponse:
    return html("missing.html", HTTP_NOT_FOUND, what=what, asked=asked)
