"""Pages of the embedded platform, read as a person does: text, links, rows."""

import html
import re

import httpx


def page_of(evaluation: str, query: str = "") -> str:
    return f"/dashboard/evaluations/{evaluation}{query}"


def text_of(page: str) -> str:
    """What is to be read: no tags, one space between words."""
    page = re.sub(r"<style>.*?</style>|<title>.*?</title>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def links(page: str, label: str) -> list[str]:
    """The addresses of the links whose text has ``label``."""
    found = re.findall(r'<a\b[^>]*href="([^"]*)"[^>]*>(.*?)</a>', page, re.DOTALL)
    return [html.unescape(address) for address, inner in found if label in text_of(inner)]


def section_of(page: str, name: str) -> str:
    """The part of the page with the id ``name``."""
    start = page.index(f'id="{name}"')
    return page[start : page.index("</section>", start)]


def table_of(page: str) -> list[str]:
    """The rows of the table of samples, as text."""
    section = section_of(page, "samples")
    body = section[section.index("<tbody>") : section.index("</tbody>")]
    return [text_of(row) for row in body.split("</tr>") if "<td" in row]


def fail(api: httpx.Client, evaluation: str, message: str, status: str = "FAILED") -> None:
    """End an evaluation, saying why."""
    body = {"status": status, "error_message": message}
    assert api.put(f"/evaluations/{evaluation}", json=body).is_success
