"""Text for Prefect's artifacts, whose Markdown both of its UIs set.

They strip inline SVG, collapse nothing, and know no entities inside tables: so bars are block
characters in code, and whatever comes from outside is escaped with backslashes or stands in code.
"""

import re
from collections.abc import Iterable, Sequence

#: Characters of one value inside a table or a sentence.
_LONGEST = 300
#: Underscores within a word are no emphasis, and names are full of them.
_SPECIAL = re.compile(r"[\\`*{}\[\]<>()#!|~&$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
_GAUGE = 20
_EIGHTHS = " ▏▎▍▌▋▊▉"


def text(value: object, longest: int = _LONGEST) -> str:
    """A value as plain text on one line, whatever is in it."""
    return _SPECIAL.sub(r"\\\g<0>", shorten(value, longest))


def cell(value: object) -> str:
    """A value for a table artifact: one UI takes its cells for Markdown, the other shows them as
    they are, so no more is escaped than would do harm.
    """
    return re.sub(r"[\\`<\[!*]", r"\\\g<0>", shorten(value))


def code(value: object, longest: int = _LONGEST) -> str:
    """A value in a code span on one line, inside or outside a table."""
    inner = shorten(value, longest)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", inner)), default=0))
    pad = " " if inner.startswith("`") or inner.endswith("`") else ""
    return f"{fence}{pad}{inner}{pad}{fence}" if inner else ""


def block(value: str, language: str = "text") -> str:
    """Lines as they are, in a code block."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", value)), default=0))
    return f"{fence}{language}\n{value}\n{fence}"


def link(label: str, url: str) -> str:
    """A link; only to the web, and as text where it leads elsewhere."""
    if not re.match(r"https?://[^\s<>()]+$", url):
        return text(f"{label} ({url})")
    return f"[{text(label)}]({url})"


def bar(share: float, width: int) -> str:
    """A share of 0 to 1 as a bar of block characters, at most ``width`` of them."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def gauge(share: float) -> str:
    """A share of 0 to 1, beside what is missing to 1."""
    whole = round(max(0.0, min(1.0, share)) * _GAUGE)
    return "█" * whole + "░" * (_GAUGE - whole)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """Rows of Markdown under a head; ``align`` holds an ``r`` for each column of numbers."""
    marks = ["--:" if side == "r" else ":--" for side in align.ljust(len(head), "l")]
    lines = [head, marks, *rows]
    # A pipe ends a cell, in code too; what is text has escaped its own.
    cells = [[re.sub(r"(?<!\\)\|", r"\\|", each) for each in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def shorten(value: object, longest: int = _LONGEST) -> str:
    """A value on one line, cut to so many characters; what cannot be printed is blank."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def figure(value: float) -> str:
    """A metric to four digits."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"  # noqa: PLR2004 - no exponent before it is needed


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def plural(count: int, noun: str) -> str:
    """A count of something."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
