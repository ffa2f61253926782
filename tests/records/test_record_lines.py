"""Records come back from a file, whatever else is in it."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import DATA

from prefect_prime import record_lines
from prefect_prime.record_lines import Line, read_lines

TORN = DATA / "crash-torn" / "traces.jsonl"
CLEAN = DATA / "clean" / "traces.jsonl"


def episode(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "env": {"id": "toy"}, "traces": [], **more}


def line_of(record: Any) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode()


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def write_and_read(content: bytes) -> list[Line]:
        file = tmp_path / "records.jsonl"
        file.write_bytes(content)
        return list(read_lines(file))

    return write_and_read


def ids(lines: list[Line]) -> list[Any]:
    return [record["id"] for line in lines for record in line.records]


def flaws(lines: list[Line]) -> dict[int, Any]:
    return {line.number: line.flaw for line in lines if line.flaw}


@pytest.mark.parametrize(
    "content",
    [
        b"%s\n%s\n",
        b"%s\n%s",
        b"%s\r\n%s\r\n",
        b"\xef\xbb\xbf%s\n%s\n",
        b"  %s\t\n%s \n",
    ],
    ids=["plain", "no final newline", "CRLF", "byte order mark", "spaces"],
)
def test_the_same_records_come_back_however_the_lines_end(read: Any, content: bytes) -> None:
    lines = read(content % (line_of(episode("a")), line_of(episode("b"))))

    assert [line.records for line in lines] == [(episode("a"),), (episode("b"),)]
    assert flaws(lines) == {}


def test_a_line_ends_at_a_newline_alone(read: Any) -> None:
    text = "one\u2028two\u2029three\x85four\x0bfive\x0csix\x1cseven\ufeff"
    (line,) = read(line_of(episode("a", text=text)) + b"\n")

    assert line.records[0]["text"] == text


def test_blank_lines_are_told_by_number_and_cost_nothing(read: Any) -> None:
    lines = read(b"\n%s\r\n  \r\n\n%s\n" % (line_of(episode("a")), line_of(episode("b"))))

    assert ids(lines) == ["a", "b"]
    assert flaws(lines) == {1: "blank", 3: "blank", 4: "blank"}


def test_not_a_number_is_read_as_what_it_is(read: Any) -> None:
    (line,) = read(b'{"id":"a","traces":[],"score":NaN,"low":-Infinity}\n')

    assert line.flaw is None
    assert str(line.records[0]["score"]) == "nan"
    assert line.records[0]["low"] == float("-inf")


def test_integers_of_any_size_stay_exact(read: Any) -> None:
    (line,) = read(line_of(episode("a", large=10**30 + 1)))

    assert line.records[0]["large"] == 10**30 + 1


@pytest.mark.parametrize(
    ("content", "flaw", "reason"),
    [
        (b"[1, 2]", "foreign", "list where a record is an object"),
        (b"null", "foreign", "NoneType"),
        (b"12 apples", "foreign", "not JSON"),
        (b"INFO rollout done", "foreign", "not JSON: Expecting value at character 1"),
        (b'{"level": "info"}', "foreign", "neither traces, nor nodes, nor sample_id"),
        (b'{"traces": []}', "foreign", "id of a record of kind episode must be text"),
        (b'{"id": "a", "traces": {}}', "foreign", "no list of objects"),
        (b'{"id": "a", "traces": [7]}', "foreign", "no list of objects"),
        (b'{"id": "a", "nodes": 7}', "foreign", "neither traces"),
        (b'{"id": "a", "traces": [', "torn", "ends inside an object"),
        (b'{"id": "a', "torn", "ends inside an object"),
        (b"\x00" * 64, "foreign", "not JSON"),
        (b"\x1f\x8b\x08\x00\xff", "foreign", "not JSON"),
        (b'{"id":' * 5000, "torn", "ends inside an object"),
    ],
)
def test_what_is_no_record_is_named_with_its_reason(
    read: Any, content: bytes, flaw: str, reason: str
) -> None:
    lines = read(b"%s\n%s\n%s\n" % (line_of(episode("a")), content, line_of(episode("b"))))

    assert ids(lines) == ["a", "b"]
    assert flaws(lines) == {2: flaw}
    assert reason in lines[1].reason


def test_the_torn_last_line_of_a_real_run_is_named() -> None:
    lines = list(read_lines(TORN))

    assert [len(line.records) for line in lines] == [1, 0]
    assert flaws(lines) == {2: "torn"}


def test_a_whole_record_appended_to_a_torn_line_is_kept(read: Any) -> None:
    first, second = CLEAN.read_bytes().splitlines()[:2]
    lines = read(TORN.read_bytes() + first + b"\n" + second + b"\n")

    assert ids(lines)[1:] == [json.loads(first)["id"], json.loads(second)["id"]]
    assert flaws(lines) == {2: "torn"}
    assert "the whole record appended" in lines[1].reason


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_it_is_kept_wherever_the_line_before_it_was_torn(read: Any, cut: int) -> None:
    torn = line_of(episode("torn", text="ü{}\\u00e4", nested={"id": "inner"}))[:cut]
    lines = read(torn + line_of(episode("whole", text="{")) + b"\n")

    assert ids(lines) == ["whole"]
    assert flaws(lines) == {1: "torn"}


def test_an_object_of_a_torn_record_is_no_record(read: Any) -> None:
    trace = {"id": "t", "nodes": []}
    torn = line_of(episode("torn", traces=[trace])).removesuffix(b"]}")
    lines = read(line_of(episode("a")) + b"\n" + torn)

    assert ids(lines) == ["a"]
    assert flaws(lines) == {2: "torn"}


def test_records_that_lost_the_newline_between_them_are_all_kept(read: Any) -> None:
    lines = read(line_of(episode("a")) + line_of(episode("b")) + b"\n" + line_of(episode("c")))

    assert ids(lines) == ["a", "b", "c"]
    assert flaws(lines) == {}


def test_bytes_that_are_no_text_cost_themselves_alone(read: Any) -> None:
    (line,) = read(b'{"id":"a","traces":[],"text":"caf\xe9"}\n')

    assert line.records[0]["text"] == "caf\ufffd"
    assert line.flaw is None


def test_a_line_too_long_for_any_request_is_named_and_not_held(
    read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_lines, "MAX_LINE_BYTES", 100)
    exact = line_of(episode("exact"))
    exact = exact[:-1] + b" " * (100 - len(exact)) + exact[-1:]
    lines = read(exact + b"\n" + b"x" * 1000 + b"\n" + line_of(episode("b")) + b"\n" + b"y" * 101)

    assert ids(lines) == ["exact", "b"]
    assert flaws(lines) == {2: "foreign", 4: "foreign"}
    assert "long" in lines[1].reason
