"""Where the rollouts of an evaluation are, and how SQL reads their columns there.

A sample is read by its facts. An episode or a bare trace that has no sample is read from the
tables of Prime Traces: only what is not in a column there is taken out of its JSON.
"""
# ruff: noqa: S608 - SQL is put together from constants; every value is bound

#: The rollouts that are samples.
SAMPLES = "SELECT {columns} FROM sample_facts WHERE evaluation_id = {evaluation}"

#: SQL of an episode ``e`` of Prime Traces, whose envelope holds no traces.
_OF_EPISODE = "t.episode_id = e.episode_id"
_ENVELOPE = "CAST(e.envelope AS TEXT)"
_DATA = f"json_extract({_ENVELOPE}, '$.task.data.{{key}}')"
_FIRST = f"(SELECT t.{{column}} FROM traces t WHERE {_OF_EPISODE} ORDER BY t.seq LIMIT 1)"
_SUM = f"(SELECT {{sum}} FROM traces t WHERE {_OF_EPISODE})"
#: The last error of the first trace that has one.
_TRACE_ERROR = """
(SELECT COALESCE(json_extract(CAST(d.document AS TEXT), '$.errors[#-1].{key}'), '{default}')
 FROM traces t JOIN trace_documents d ON d.trace_id = t.trace_id
 WHERE {which} AND t.has_error ORDER BY t.seq LIMIT 1)
"""


def _error(key: str, default: str, which: str) -> str:
    return _TRACE_ERROR.format(key=key, default=default, which=which)


def _known(*sql: str) -> str:
    return f"COALESCE({', '.join(sql)})"


#: Columns of a rollout without a sample: those of an episode ``e``, and of a bare trace ``b``.
_EPISODE = {
    "position": "NULL",
    "episode_id": "e.episode_id",
    "example": _known(
        _DATA.format(key="idx"), _DATA.format(key="id"), _FIRST.format(column="task_id")
    ),
    "rollout": "NULL",
    "reward": _FIRST.format(column="reward"),
    "error_type": _known(
        "e.error_type",
        _error("type", "not ok", _OF_EPISODE),
        "CASE WHEN e.outcome IN ('error', 'timeout') THEN 'not ok' END",
    ),
    "error_message": _known("e.error_message", _error("message", "", _OF_EPISODE)),
    "stop_condition": _FIRST.format(column="outcome"),
    "truncated": _known(_FIRST.format(column="is_truncated"), "0"),
    "tokens": _SUM.format(sum="SUM(total_tokens)"),
    "duration_ms": _SUM.format(sum="MAX(duration_ms)"),
    "input": _known(_DATA.format(key="prompt"), "''"),
    "target": _known(_DATA.format(key="answer"), "''"),
    "reply": "''",
}
_OF_TRACE = "t.trace_id = b.trace_id"
_TRACE = {
    "position": "NULL",
    "episode_id": "b.trace_id",
    "example": "b.task_id",
    "rollout": "NULL",
    "reward": "b.reward",
    "error_type": _error("type", "not ok", _OF_TRACE),
    "error_message": _error("message", "", _OF_TRACE),
    "stop_condition": "b.outcome",
    "truncated": "b.is_truncated",
    "tokens": "b.total_tokens",
    "duration_ms": "b.duration_ms",
    "input": "''",
    "target": "''",
    "reply": "''",
}
#: Every column of a rollout.
COLUMNS = tuple(_EPISODE)

_NO_SAMPLE = """
NOT EXISTS (SELECT 1 FROM sample_facts WHERE evaluation_id = :evaluation AND episode_id = {id})
"""
_NO_SAMPLE_OF_EPISODE = _NO_SAMPLE.format(id="e.episode_id")
_NO_SAMPLE_OF_TRACE = _NO_SAMPLE.format(id="b.trace_id")
_RUN = f"json_extract({_ENVELOPE}, '$.run.id')"
#: Where rollouts without a sample are, and how their columns are read there. The service
#: takes ``run_id`` from traces alone: for an episode without any, its envelope tells.
ELSEWHERE = {
    f"FROM episodes e WHERE e.run_id = :evaluation AND {_NO_SAMPLE_OF_EPISODE}": _EPISODE,
    f"FROM episodes e WHERE e.run_id IS NULL AND {_RUN} = :evaluation"
    f" AND {_NO_SAMPLE_OF_EPISODE}": _EPISODE,
    "FROM traces b WHERE b.run_id = :evaluation AND b.episode_id IS NULL"
    f" AND {_NO_SAMPLE_OF_TRACE}": _TRACE,
}
