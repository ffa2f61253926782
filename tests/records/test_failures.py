"""Errors are counted by type, with one example of each, in constant memory."""

import json

from support import DATA, episodes_of

from prefect_prime.failures import Failure, Failures


def of(*records):
    failures = Failures()
    for record in records:
        failures.add(record)
    return failures


def test_the_errors_of_episodes_and_of_their_traces_count():
    found = of(*episodes_of(DATA / "multi-half"), *episodes_of(DATA / "errors")).by_type()

    assert {failure.type for failure in found} >= {"EnvError", "TaskError"}
    task_error = next(failure for failure in found if failure.type == "TaskError")
    assert task_error.message == "task ToyTask scoring: RuntimeError: reward blew up"
    assert task_error.record in {episode["id"] for episode in episodes_of(DATA / "errors")}


def test_the_most_frequent_comes_first_with_its_first_example():
    found = of(
        {"id": "a", "errors": [{"type": "Rare", "message": "x"}]},
        {"id": "b", "errors": [{"type": "Often", "message": "first"}]},
        {"sample_id": "c", "error": {"type": "Often", "message": "second"}},
        {"sample_id": "d", "error": "only text"},
    ).by_type()

    assert found[0] == Failure("Often", 2, "first", "b")
    assert Failure("Error", 1, "only text", "d") in found


def test_types_without_end_take_no_memory_without_end():
    failures = of(*({"errors": [{"type": f"E{n}", "message": "m" * 9999}]} for n in range(500)))

    found = failures.by_type()

    assert len(found) == 21
    assert (found[0].type, found[0].count) == ("(other types)", 480)
    assert len(json.dumps(failures.state())) < 10_000


def test_what_is_no_error_is_no_error():
    records = ({"errors": None}, {"errors": "x"}, {"traces": [None, 3]}, {"error": ""}, {})
    assert of(*records).by_type() == []


def test_a_state_goes_on_in_another_process():
    one, two = ({"id": name, "errors": [{"type": "E", "message": name}]} for name in "ab")

    later = Failures.from_state(json.loads(json.dumps(of(one).state())))
    later.add(two)

    assert later.by_type() == [Failure("E", 2, "a", "a")]
