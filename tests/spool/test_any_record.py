"""Whatever is logged: both sinks have the same of it, or the spool has one readable reason."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from any_values import examples, hopeless, is_as_documented, keys, nested, scalars
from hypothesis import given
from hypothesis import strategies as st

from prefect_prime.errors import RecordRejectedError
from prefect_prime.spool import Spool
from prefect_prime.spool.requests import plan_samples

RUN = "evaluation"
numbers = itertools.count()
odd = st.dictionaries(keys, scalars, max_size=3)


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spool]:
    spool = Spool(tmp_path_factory.mktemp("any") / "owner", segment_bytes=1_000_000)
    yield spool
    spool.close()


def reason_against(spool: Spool, record: dict[str, Any]) -> str | None:
    try:
        assert spool.add(record)
    except RecordRejectedError as error:
        return str(error)
    return None


def sent(spool: Spool) -> tuple[list[Any], list[Any]]:
    """What the latest segment is for each sink."""
    spool.seal()
    [*_, traces] = spool.ledger.deliveries.pending("traces", 10_000)
    [*_, samples] = spool.ledger.deliveries.pending("samples", 10_000)
    plan = plan_samples(spool, samples)
    assert plan.unfit == {}
    lines = b"".join(spool.payload(traces, RUN)).split(b"\n")[:-1]
    return [json.loads(line) for line in lines], [
        row for request in plan.requests for row in json.loads(request.body)["samples"]
    ]


@examples
@given(
    st.fixed_dictionaries(
        {
            "info": st.builds(lambda value: {"value": value}, nested(scalars | hopeless)),
            "metrics": st.dictionaries(keys, scalars, max_size=3),
            "task": st.builds(lambda data, idx: {"data": {**data, "idx": idx}}, odd, scalars),
        }
    ),
    st.none() | odd,
)
def test_both_sinks_have_the_same_of_a_record_or_there_is_one_reason(
    spool: Spool, trace: dict[str, Any], run: Any
) -> None:
    number = next(numbers)
    value = trace["info"]["value"]
    trace = {**trace, "id": f"t-{number}", "nodes": []}
    record = {"id": f"e-{number}", "ok": True, "traces": [trace], **({"run": run} if run else {})}
    before = spool.rejected

    if (said := reason_against(spool, record)) is not None:
        assert spool.rejected == before + 1
        assert spool.ledger.rejections()[-1] == ("episode", record["id"], said)
        return
    [line], [row] = sent(spool)
    [member] = line["traces"]
    assert is_as_documented(member["info"]["value"], value)
    assert (line["run"]["id"], member["run"]["id"]) == (RUN, RUN)
    wrapper = row["info"].pop("native_wrapper")
    row["info"].pop("native_trace_index")
    assert {**wrapper, "traces": [{**wrapper["traces"][0], "run": 0}], "run": 0} == {
        **line,
        "traces": [{**member, "run": 0}],
        "run": 0,
    }
    assert row["info"] == member["info"]
    assert row["metrics"] == member["metrics"]
