"""The rollouts of one evaluation, as its page asks for them: all of it in SQL.

A rollout is a sample, by its facts. What only Prime Traces has (episodes without traces,
bare traces, an evaluation that sends no samples) is a rollout too, from the columns there:
an eval that failed before its first message has nothing else to show.
"""
# ruff: noqa: S608 - SQL is put together from constants; every value is bound

import math
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from prefect_prime.local.pages_sources import COLUMNS, ELSEWHERE, SAMPLES

#: What a selection looks at.
_FILTERED = ("example", "reward", "error_type", "truncated")
#: Rows on one page of the table.
PAGE = 50
#: Examples on one page of the grid, and the rollouts of each that it has room for.
EXAMPLES = 15
ROLLOUTS = 12
#: Bars of a histogram; up to ``MAX_VALUES`` different rewards have a bar each.
BINS = 20
MAX_VALUES = 12
#: Types of error that are listed, and the examples that changed most.
MAX_ERRORS = 20
MAX_CHANGED = 10

#: The input of an example that is ``shown``, for people who do not know examples by number.
_INPUT = """
COALESCE((SELECT facts.input FROM sample_facts facts INDEXED BY sample_facts_by_example
    WHERE facts.evaluation_id = :evaluation AND facts.example = shown.example LIMIT 1), '')
    AS input
"""
#: What the table can be sorted by: the SQL, and whether the largest come first at first.
SORTS = {
    "arrival": ("position", False),
    "example": ("example", False),
    "rollout": ("rollout", False),
    "reward": ("reward", False),
    "tokens": ("tokens", True),
    "time": ("duration_ms", True),
    "error": ("error_type", True),
}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which rollouts the table shows, and in which order. Rewards are inclusive bounds."""

    example: str | None = None
    error: str | None = None
    only: str | None = None
    low: float | None = None
    high: float | None = None
    sort: str = "arrival"
    descending: bool = False

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return (self.example, self.error, self.only, self.low, self.high) == (None,) * 5

    def where(self) -> tuple[str, dict[str, Any]]:
        """SQL and its values."""
        clauses, values = ["1"], {}
        for name, value, sql in (
            ("example", self.example, "CAST(example AS TEXT) = :example"),
            ("error", self.error, "error_type = :error"),
            ("low", self.low, "reward >= :low"),
            ("high", self.high, "reward <= :high"),
        ):
            if value is not None:
                clauses.append(sql)
                values[name] = value
        if self.only in _ONLY:
            clauses.append(_ONLY[self.only])
        return " AND ".join(clauses), values


_ONLY = {
    "errors": "error_type IS NOT NULL",
    "truncated": "truncated",
    "unscored": "reward IS NULL",
}


class Bar(NamedTuple):
    """One bar of a histogram: rewards from ``low`` to ``high``."""

    low: float
    high: float
    rollouts: int


class Rollouts:
    """The rollouts of one evaluation, read over one connection."""

    def __init__(self, connection: sqlite3.Connection, evaluation_id: str) -> None:
        self._connection = connection
        self._values: dict[str, Any] = {"evaluation": evaluation_id}
        self._elsewhere = [
            (source, columns)
            for source, columns in ELSEWHERE.items()
            if self._one(f"SELECT 1 {source} LIMIT 1")
        ]

    def totals(self) -> sqlite3.Row:
        """``rollouts``, ``examples``, ``mean``, ``scored``, ``errors``, ``truncated``."""
        row = self._one(
            "SELECT COUNT(*) AS rollouts, COUNT(DISTINCT example) AS examples,"
            " AVG(reward) AS mean, COUNT(reward) AS scored, COUNT(error_type) AS errors,"
            " COALESCE(SUM(truncated), 0) AS truncated"
            f" FROM ({self._source('example', 'reward', 'error_type', 'truncated')})"
        )
        assert row is not None  # noqa: S101 - an aggregate always has a row
        return row

    def count(self, selection: Selection) -> int:
        """How many rollouts are selected."""
        where, values = selection.where()
        row = self._one(f"SELECT COUNT(*) FROM ({self._source(*_FILTERED)}) WHERE {where}", values)
        return 0 if row is None else int(row[0])

    def page(self, selection: Selection, page: int) -> list[sqlite3.Row]:
        """The rows of one page, from 1."""
        where, values = selection.where()
        column, _ = SORTS[selection.sort]
        direction = "DESC" if selection.descending else "ASC"
        order = f"{column} {direction} NULLS LAST, position {direction}"
        values["offset"] = (page - 1) * PAGE
        part = f"WHERE {where} ORDER BY {order} LIMIT {PAGE} OFFSET :offset"
        if self._elsewhere:
            return self._all(f"SELECT * FROM ({self._source(*COLUMNS)}) {part}", values)
        # The order is found over a few columns; the texts are read for this page alone.
        narrow = self._source(*dict.fromkeys(("position", column, *_FILTERED)))
        return self._all(
            f"WITH shown AS MATERIALIZED (SELECT position FROM ({narrow}) {part})"
            f" SELECT {', '.join(f'wide.{name}' for name in COLUMNS)}"
            " FROM shown CROSS JOIN sample_facts wide"
            " ON wide.evaluation_id = :evaluation AND wide.position = shown.position",
            values,
        )

    def histogram(self) -> list[Bar]:
        """The rewards, counted: each value, or equal steps where there are too many."""
        source = f"({self._source('reward')}) WHERE reward IS NOT NULL"
        # Found early among many, where counting each of them would take long.
        values = self._all(f"SELECT DISTINCT reward FROM {source} LIMIT {MAX_VALUES + 1}")
        if len(values) <= MAX_VALUES:
            each = self._all(
                f"SELECT reward, COUNT(*) AS rollouts FROM {source} GROUP BY reward ORDER BY reward"
            )
            return [Bar(row["reward"], row["reward"], row["rollouts"]) for row in each]
        row = self._one(f"SELECT MIN(reward), MAX(reward) FROM {source}")
        low, high = (0.0, 0.0) if row is None else (float(row[0]), float(row[1]))
        # Halves, so that a range wider than a float does not overflow.
        step = (high / 2 - low / 2) / BINS
        if not step or not math.isfinite(1 / step):
            count = self._one(f"SELECT COUNT(*) FROM {source}")
            return [Bar(low, high, 0 if count is None else count[0])]
        counted = self._all(
            "SELECT MIN(CAST((reward / 2 - :low / 2) / :step AS INTEGER), :last) AS bin,"
            f" COUNT(*) AS rollouts FROM {source} GROUP BY bin",
            {"low": low, "step": step, "last": BINS - 1},
        )
        counts = {row["bin"]: row["rollouts"] for row in counted}
        edges = [low + 2 * step * number for number in range(BINS)] + [high]
        return [Bar(edges[bin_], edges[bin_ + 1], counts.get(bin_, 0)) for bin_ in range(BINS)]

    def errors(self) -> list[sqlite3.Row]:
        """``error_type``, ``count``, and one rollout that has it; the most frequent first."""
        kinds = self._all(
            f"SELECT error_type, COUNT(*) AS count FROM ({self._source('error_type')})"
            " WHERE error_type IS NOT NULL GROUP BY error_type"
            f" ORDER BY count DESC, error_type LIMIT {MAX_ERRORS}"
        )
        names = ("position", "episode_id", "error_type", "error_message", "example")
        found = []
        for kind in kinds:
            one = self._one(
                f"SELECT *, {kind['count']} AS count FROM ({self._source(*names)})"
                " WHERE error_type = :kind LIMIT 1",
                {"kind": kind["error_type"]},
            )
            if one is not None:
                found.append(one)
        return found

    def examples(self, page: int) -> tuple[int, list[sqlite3.Row], dict[Any, list[sqlite3.Row]]]:
        """How many examples there are; one page of them, the lowest mean reward first; and
        their first rollouts.
        """
        names = ("example", "rollout", "reward", "error_type")
        source = f"({self._source(*names)}) WHERE example IS NOT NULL"
        row = self._one(f"SELECT COUNT(DISTINCT example) FROM {source}")
        shown = self._all(
            f"SELECT *, {_INPUT} FROM (SELECT example, COUNT(*) AS rollouts, AVG(reward) AS mean"
            f" FROM {source} GROUP BY example ORDER BY mean, example"
            f" LIMIT {EXAMPLES} OFFSET :offset) AS shown",
            {"offset": (page - 1) * EXAMPLES},
        )
        wide = ("position", "episode_id", *names)
        cells: dict[Any, list[sqlite3.Row]] = {}
        for cell in self._all(
            "SELECT * FROM (SELECT *, ROW_NUMBER() OVER"
            " (PARTITION BY example ORDER BY rollout, position) AS place FROM"
            f" ({self._source(*wide)}) WHERE example IN (SELECT value FROM json_each(:shown)))"
            f" WHERE place <= {ROLLOUTS} ORDER BY place",
            {"shown": orjson.dumps([row["example"] for row in shown]).decode()},
        ):
            cells.setdefault(cell["example"], []).append(cell)
        return (0 if row is None else row[0]), shown, cells

    def one(self, position: int | None, episode_id: Any) -> sqlite3.Row | None:
        """The rollout of a sample, or of an episode that has none."""
        return self._one(
            f"SELECT * FROM ({self._source(*COLUMNS)})"
            " WHERE position = :position OR (:position IS NULL AND episode_id = :episode) LIMIT 1",
            {"position": position, "episode": episode_id if isinstance(episode_id, str) else ""},
        )

    def of_example(self, example: Any) -> list[sqlite3.Row]:
        """The rollouts of one example."""
        names = ("position", "episode_id", "example", "rollout", "reward", "error_type")
        return self._all(
            f"SELECT * FROM ({self._source(*names)}) WHERE example = :example"
            f" ORDER BY rollout, position LIMIT {4 * ROLLOUTS}",
            {"example": example},
        )

    def changes(self, baseline: str) -> tuple[sqlite3.Row | None, list[sqlite3.Row]]:
        """Mean rewards of the examples that ``baseline`` has too: how many fell, rose and
        stayed; and those that fell most.
        """
        means = (
            "SELECT example, AVG(reward) AS mean, COUNT(*) AS rollouts FROM ({source})"
            " WHERE example IS NOT NULL AND reward IS NOT NULL GROUP BY example"
        )
        now = means.format(source=self._source("example", "reward"))
        # What only Prime Traces has of the baseline does not count: its samples do.
        before = means.format(
            source=SAMPLES.format(columns="example, reward", evaluation=":baseline")
        )
        both = (
            f"WITH now AS MATERIALIZED ({now}), before AS MATERIALIZED ({before}),"
            " both AS MATERIALIZED (SELECT now.example, before.mean AS before, now.mean AS now,"
            " now.mean - before.mean AS change, now.rollouts AS rollouts"
            " FROM now JOIN before ON before.example = now.example) "
        )
        values = {"baseline": baseline}
        totals = self._one(
            f"{both} SELECT COUNT(*) AS examples, COALESCE(SUM(change < 0), 0) AS worse,"
            " COALESCE(SUM(change > 0), 0) AS better, AVG(change) AS change FROM both",
            values,
        )
        worst = self._all(
            f"{both} SELECT *, {_INPUT} FROM (SELECT example, before, now, change FROM both"
            f" WHERE change < 0 ORDER BY change, example LIMIT {MAX_CHANGED}) AS shown",
            values,
        )
        return totals, worst

    def _source(self, *columns: str) -> str:
        parts = [SAMPLES.format(columns=", ".join(columns), evaluation=":evaluation")]
        for source, known in self._elsewhere:
            listed = ", ".join(f"{known[name]} AS {name}" for name in columns)
            parts.append(f"SELECT {listed} {source}")
        return " UNION ALL ".join(parts)

    def _all(self, sql: str, values: Mapping[str, Any] | None = None) -> list[sqlite3.Row]:
        return self._connection.execute(sql, {**self._values, **(values or {})}).fetchall()

    def _one(self, sql: str, values: Mapping[str, Any] | None = None) -> sqlite3.Row | None:
        row: sqlite3.Row | None
        row = self._connection.execute(sql, {**self._values, **(values or {})}).fetchone()
        return row
