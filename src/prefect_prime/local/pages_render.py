"""How the pages are put together: templates, headers, and how values read.

Whatever a producer wrote is text: templates escape everything, the one style sheet is
allowed by its digest, and no script, frame, form target or address of another origin is
allowed at all. Control characters show as their pictures (a NUL as ␀): in a page they
would vanish, and a model that wrote them would look innocent.
"""

import base64
import hashlib
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

import jinja2
from fastapi.responses import HTMLResponse
from markupsafe import Markup, escape

from prefect_prime.local.store import now

#: C0 (but tab and line ends), DEL and C1, as they are shown.
_PICTURES = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"},
    127: "\u2421",
    **{code: "\ufffd" for code in range(0x80, 0xA0) if code != 0x85},  # noqa: PLR2004 - NEL is a line end
}
#: Stands where nothing is known.
_UNKNOWN = "\N{EN DASH}"
_MICROSECONDS = 1_000_000
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
#: Rewards from lowest to highest have one of so many colours, and one more.
SHADES = 10


def visible(value: Any) -> Any:
    """A text with its control characters as pictures; anything else as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return value.translate(_PICTURES)
    return "" if value is None else value


def exact(text: str) -> Markup:
    """Escaped such that a browser keeps line ends as they are: parsing makes CRLF an LF."""
    return Markup(str(escape(visible(text))).replace("\r", "&#13;"))  # noqa: S704 - just escaped


def show_number(value: Any) -> str:
    """A number for people: integers grouped, others with four digits that count."""
    if value is None:
        return _UNKNOWN
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if not math.isfinite(value):  # a mean of numbers whose sum no float holds
        return _UNKNOWN
    if value == int(value) and abs(value) < 1e15:  # noqa: PLR2004 - exact as a float
        return f"{int(value):,}"
    return f"{value:.4g}"


def show_brief(value: float | None) -> str:
    """A number where there is little room."""
    return _UNKNOWN if value is None or not math.isfinite(value) else f"{value:.3g}"


def show_change(value: float) -> str:
    """A difference, with its sign."""
    if not math.isfinite(value):
        return _UNKNOWN
    return f"{value:+.4g}".replace("-", "\N{MINUS SIGN}") if value else "±0"


def show_share(value: Any) -> str:
    """A share of one as a percentage."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        return show_number(value)
    return f"{100 * value:.3g} %"


def show_duration(milliseconds: Any) -> str:
    """Milliseconds in the largest unit that fits, and the next."""
    if milliseconds is None:
        return _UNKNOWN
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.2g} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"  # noqa: PLR2004 - two digits that count
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < _DAY:
        return f"{int(seconds // _HOUR)} h {int(seconds % _HOUR // 60)} min"
    return f"{int(seconds // _DAY)} d {int(seconds % _DAY // _HOUR)} h"


def show_when(microseconds: int | None) -> Markup:
    """A moment: how long ago, and exactly when."""
    if microseconds is None:
        return escape(_UNKNOWN)
    moment = datetime.fromtimestamp(microseconds / _MICROSECONDS, UTC)
    passed = max(0, now() - microseconds) / _MICROSECONDS
    steps = ((_MINUTE, 1, "s"), (_HOUR, _MINUTE, "min"), (_DAY, _HOUR, "h"))
    ago = next(
        (f"{int(passed // unit)} {name} ago" for limit, unit, name in steps if passed < limit),
        f"{int(passed // _DAY)} d ago",
    )
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        moment.isoformat(), f"{moment:%Y-%m-%d %H:%M:%S} UTC", ago
    )


def show_moment(microseconds: int | None) -> str:
    """A moment as date and time."""
    if microseconds is None:
        return _UNKNOWN
    return f"{datetime.fromtimestamp(microseconds / _MICROSECONDS, UTC):%Y-%m-%d %H:%M} UTC"


def safe_url(value: Any) -> str | None:
    """An address that a link may have: of the web, never of a script."""
    if not isinstance(value, str):
        return None
    try:
        parts = urlsplit(value)
    except ValueError:
        return None
    return value if parts.scheme in {"http", "https"} and parts.netloc else None


def query(given: Mapping[str, Any], **changed: Any) -> str:
    """``?…`` of ``given`` with some of it changed; what is None is left out."""
    kept = {name: value for name, value in {**given, **changed}.items() if value is not None}
    return f"?{urlencode(kept)}" if kept else "?"


def shade(value: float | None, low: float | None, high: float | None) -> str:
    """The class of a reward's colour between the lowest and the highest."""
    if value is None or low is None or high is None:
        return "none"
    span = high / 2 - low / 2
    part = (value / 2 - low / 2) / span if span > 0 else 1.0
    return f"h{round(SHADES * min(1.0, max(0.0, part)))}"


_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("prefect_prime.local"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=visible,
)
_TEMPLATES.filters |= {
    "exact": exact,
    "number": show_number,
    "brief": show_brief,
    "change": show_change,
    "share": show_share,
    "duration": show_duration,
    "when": show_when,
    "moment": show_moment,
}
_TEMPLATES.globals |= {"query": query, "shade": shade}


def _style_digest() -> str:
    found = re.fullmatch(
        r"<style>(.*)</style>\s*", _TEMPLATES.get_template("style.html").render(), re.DOTALL
    )
    assert found is not None  # noqa: S101 - the file is ours
    return base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()


_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_style_digest()}'; img-src data:;"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: For what is a producer's text as it is: the browser is to show it, never to run it.
RAW_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_HEADERS = {**RAW_HEADERS, "Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}


def html(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page."""
    text = _TEMPLATES.get_template(template).render(**values)
    return HTMLResponse(text, status, headers=_HEADERS)
