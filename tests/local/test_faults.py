"""What a client meets when the platform misbehaves on demand, over real sockets."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from time import time

import httpx
import pytest
from prime_traces import ErrorCode
from support import wait_until

from prefect_prime.local import Arrival, Fault, Faults, LocalPlatform

SAMPLES = "POST /evaluations/{id}/samples"
LIST = "GET /evaluations/"
#: How often a request is processed that meets a fault so.
PROCESSED = {"before": 0, "after": 1}


@pytest.fixture
def faulty(platform):
    """The platform of the module; a test sets its faults, which end with it."""
    yield platform
    platform.faults = None


@pytest.fixture
def client(faulty):
    """A client with a connection of its own that waits for no answer for long."""
    key = faulty.credentials.api_key.get_secret_value()
    with httpx.Client(
        base_url=f"{faulty.url}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=0.5
    ) as client:
        yield client


class Samples:
    """The samples of one evaluation: appended by a client, counted by another."""

    def __init__(self, client, api, evaluation):
        self.client, self._api = client, api
        self.path = f"/evaluations/{evaluation}/samples"

    def append(self, client=None):
        return (client or self.client).post(self.path, json={"samples": [{"a": 1}]})

    def stored(self):
        return self._api.get(self.path).json()["total"]


@pytest.fixture
def samples(client, api, new_evaluation):
    return Samples(client, api, new_evaluation(api))


def met(platform, count=1):
    return [(one.status, one.fault) for one in platform.requests[-count:]]


# -- each fault, over HTTP -------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 429, 500, 502, 503, 504, 599])
@pytest.mark.parametrize("when", PROCESSED)
def test_a_status_comes_before_or_after_processing(faulty, samples, status, when):
    faulty.faults = Faults({SAMPLES: f"{status} {when}"})
    assert samples.append().status_code == status
    assert met(faulty) == [(200 if PROCESSED[when] else None, f"{status} {when}")]
    assert samples.stored() == PROCESSED[when]


@pytest.mark.parametrize("when", PROCESSED)
def test_a_reset_comes_before_or_after_processing(faulty, samples, when):
    faulty.faults = Faults({SAMPLES: f"reset {when}"})
    with pytest.raises(httpx.ReadError):
        samples.append()
    assert met(faulty) == [(200 if PROCESSED[when] else None, f"reset {when}")]
    assert samples.stored() == PROCESSED[when]


@pytest.mark.parametrize("when", PROCESSED)
def test_a_hanging_request_is_never_answered(faulty, samples, when):
    faulty.faults = Faults({SAMPLES: f"hang {when}"})
    with pytest.raises(httpx.ReadTimeout):
        samples.append()
    assert samples.stored() == PROCESSED[when]


def test_a_request_that_hangs_for_some_seconds_is_reset_then(faulty, samples):
    faulty.faults = Faults({SAMPLES: "hang before 0.01"})
    with pytest.raises(httpx.ReadError):
        samples.append()


@pytest.mark.parametrize("when", PROCESSED)
def test_html_comes_with_a_200(faulty, samples, when):
    faulty.faults = Faults({SAMPLES: f"html {when}"})
    answer = samples.append()
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html"
    assert answer.text.startswith("<!doctype html>")
    assert samples.stored() == PROCESSED[when]


def test_a_slow_answer_is_the_right_one(faulty, samples):
    faulty.faults = Faults({SAMPLES: ["slow 0.01", "slow 600"]})
    assert samples.append().json()["samples_added"] == 1
    with pytest.raises(httpx.ReadTimeout):
        samples.append()
    assert samples.stored() == 2


def test_a_truncated_answer_ends_in_the_middle(faulty, samples):
    faulty.faults = Faults({SAMPLES: "truncated"})
    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
        samples.append()
    assert met(faulty) == [(200, "truncated")]
    assert samples.stored() == 1


def test_an_answer_without_a_body_is_truncated_before_its_head(faulty, client, api, post_traces):
    post_traces(api, [{"id": "to-delete"}])
    faulty.faults = Faults({"DELETE /traces/{id}": "truncated"})
    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        client.delete("/traces/to-delete")
    assert api.get("/traces/to-delete").status_code == 404


@pytest.mark.parametrize("fault", ["502 late", "504 late", "reset late", "html late"])
def test_a_late_commit_comes_after_the_error(faulty, samples, fault):
    faulty.faults = Faults({SAMPLES: [f"{fault} 600", f"{fault} 0.05"]})
    for _ in range(2):
        try:
            answer = samples.append()
        except httpx.ReadError:
            assert fault == "reset late"
        else:
            assert answer.headers["content-type"] == "text/html"
    assert wait_until(samples.stored) == 1
    (commit,) = [one for one in faulty.requests if one.fault == f"{fault} 0.05"]
    assert commit.status == 200


@pytest.mark.parametrize("fault", ["refuse 600", "refuse 2"])
def test_refused_connections_are_new_ones_only_and_end(faulty, samples, fault):
    faulty.faults = Faults({SAMPLES: [fault]})
    assert samples.stored() == 0  # over a connection of its own, which stays
    with pytest.raises(httpx.ReadError):
        samples.append()
    with pytest.raises(httpx.ConnectError):
        httpx.get(faulty.url)
    assert samples.stored() == 0
    if fault == "refuse 600":
        faulty.faults = None
    wait_until(lambda: is_up(faulty))
    assert samples.append().status_code == 200


def test_a_restart_resets_everybody_and_has_the_same_data_on_the_same_port(faulty, samples):
    faulty.faults = Faults({SAMPLES: ["hang before", "restart after 600"]})
    url = faulty.url
    with ThreadPoolExecutor(1) as pool, httpx.Client(timeout=60) as other:
        other.headers, other.base_url = samples.client.headers, samples.client.base_url
        hanging = pool.submit(samples.append, other)
        wait_until(lambda: met(faulty) == [(None, "hang before")])
        with pytest.raises(httpx.ReadError):
            samples.append()
        assert isinstance(hanging.exception(), httpx.ReadError)
        with pytest.raises(httpx.TransportError):
            httpx.get(url)
    faulty.faults = None
    wait_until(lambda: is_up(faulty))
    assert faulty.url == url
    assert samples.stored() == 1


def is_up(platform):
    try:
        return httpx.get(platform.url).is_success
    except httpx.ConnectError:
        return False


@pytest.mark.parametrize("fault", ["hang before", "slow 600", "502 late 600", "restart 600"])
def test_the_end_of_the_block_waits_for_no_fault(fault, connect, new_evaluation):
    before = set(threading.enumerate())
    with LocalPlatform() as platform, ThreadPoolExecutor(1) as pool:
        api = connect(platform)
        samples = Samples(api, api, new_evaluation(api))
        platform.faults = Faults({SAMPLES: fault})
        api.timeout = 60
        sent = pool.submit(samples.append)
        wait_until(lambda: "late" in fault or met(platform)[0][1] == str(Fault.parse(fault)))
        platform.stop()
        platform.wait()
        sent.exception()
    assert not [each for each in set(threading.enumerate()) - before if each.is_alive()]


# -- Retry-After, and the forms of errors ------------------------------------------------------


def test_retry_after_comes_in_both_forms(faulty, client):
    faulty.faults = Faults({LIST: ["429 retry-after=7", "503 before retry-after=date+30", "429"]})
    seconds, date, neither = (client.get("/evaluations/") for _ in range(3))
    assert seconds.headers["retry-after"] == "7"
    moment = parsedate_to_datetime(date.headers["retry-after"])
    assert date.headers["retry-after"].endswith(" GMT")
    assert 0 < moment.timestamp() - time() <= 30
    assert "retry-after" not in neither.headers


def test_each_api_has_its_own_form_of_errors_and_a_gateway_has_neither(faulty, client):
    faulty.faults = Faults({"*": ["429", "503", "502"]})
    limited, away, gateway = (client.get("/evaluations/") for _ in range(3))
    assert limited.json() == {"detail": "the fault 429 before"}
    assert away.json() == {"detail": "the fault 503 before"}
    assert gateway.headers["content-type"] == "text/html"
    limited, away, gateway = (client.get("/traces") for _ in range(3))
    assert limited.json()["error"]["code"] == ErrorCode.RATE_LIMITED
    assert away.json()["error"]["code"] == ErrorCode.INGEST_UNAVAILABLE
    assert gateway.headers["content-type"] == "text/html"


# -- which request meets which ---------------------------------------------------------------


def test_a_script_is_met_in_the_order_of_arrival_and_ends(faulty, client):
    faulty.faults = Faults({LIST: [None, "500 before", Fault("404", "after")]})
    answers = [client.get("/evaluations/").status_code for _ in range(5)]
    assert answers == [200, 500, 404, 200, 200]


def test_a_callable_decides_on_each_arrival_and_may_wait(faulty, samples):
    gate, arrivals = threading.Event(), []

    def decide(arrival):
        arrivals.append(arrival)
        assert gate.wait(60)
        return "429" if arrival.count == 2 else None

    faulty.faults = Faults({"* /evaluations/{}/samples": decide})
    client = samples.client
    client.timeout = 60
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.get, samples.path)
        wait_until(lambda: arrivals)
        assert client.get("/evaluations/").status_code == 200  # others pass meanwhile
        gate.set()
    assert first.result().status_code == 200
    assert client.get(samples.path).status_code == 429
    route = "GET /evaluations/{evaluation_id}/samples"
    path = f"/api/v1{samples.path}"
    assert arrivals == [Arrival("GET", path, route, count) for count in (1, 2)]


def test_processed_is_told_before_the_client_is_answered(faulty, samples):
    counts = []
    faulty.faults = Faults(
        {SAMPLES: ["reset before", None, "reset after", "502 late 0.01"]},
        processed=lambda arrival: counts.append(arrival.count),
    )
    for expected in ([], [2], [2, 3]):
        with contextlib.suppress(httpx.ReadError):
            samples.append()
        assert counts == expected
    samples.append()
    wait_until(lambda: counts == [2, 3, 4])


def test_the_first_name_that_fits_decides(faulty, client):
    faulty.faults = Faults({"GET /evaluations/*": "404", "POST *": "400", "* /*": "409"})
    assert client.get("/evaluations/").status_code == 404
    assert client.get("/evaluations/any").status_code == 404
    assert client.post("/evaluations/").status_code == 400
    assert client.get("/traces").status_code == 409


def test_pages_and_paths_that_are_no_route_meet_no_fault(faulty, client):
    faulty.faults = Faults({"*": "500"})
    assert httpx.get(faulty.url).status_code == 200
    assert client.get("/nothing").status_code == 404


def test_setting_faults_takes_effect_at_once_and_counts_anew(faulty, client):
    script = Faults({LIST: ["500"]})
    for _ in range(2):
        faulty.faults = script
        assert client.get("/evaluations/").status_code == 500
        assert client.get("/evaluations/").status_code == 200
    faulty.faults = Faults({LIST: "500"})
    assert client.get("/evaluations/").status_code == 500
    faulty.faults = None
    assert client.get("/evaluations/").status_code == 200


@pytest.mark.parametrize(("fault", "ends"), [("hang after", "reset"), ("slow 600", "answered")])
def test_setting_faults_ends_what_waits(faulty, samples, fault, ends):
    faulty.faults = Faults({SAMPLES: fault})
    samples.client.timeout = 60
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(samples.append)
        wait_until(lambda: met(faulty) == [(200, str(Fault.parse(fault)))])
        assert not waiting.done()
        faulty.faults = None
        error = waiting.exception()
    assert isinstance(error, httpx.ReadError) if ends == "reset" else error is None


def test_the_same_seed_gives_each_route_the_same_faults_whatever_comes_between(faulty, samples):
    client = samples.client
    paths = ["/evaluations/", samples.path, "/traces", "/runs"]
    rates = {"*": {"404 before": 0.3, "429 after": 0.2}}

    def faults_of_a_run(workers, seed=11):
        faulty.faults = Faults(rates, seed=seed)
        before = len(faulty.requests)
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(client.get, sorted(paths * 15) if workers == 1 else paths * 15))
        made = faulty.requests[before:]
        return {path: [one.fault for one in made if one.path.endswith(path)] for path in paths}

    alone = faults_of_a_run(1)
    assert {fault for each in alone.values() for fault in each} == {
        None,
        "404 before",
        "429 after",
    }
    assert len({tuple(each) for each in alone.values()}) == len(paths)
    assert {path: sorted(map(str, each)) for path, each in faults_of_a_run(4).items()} == {
        path: sorted(map(str, each)) for path, each in alone.items()
    }
    assert faults_of_a_run(1, seed=12) != alone


def test_rates_are_shares_of_the_requests():
    faults = Faults({"*": {"429": 0.3, "reset after": 0.1}}, seed=3)
    drawn = [faults.decide(Arrival("GET", "", LIST, count)) for count in range(1, 2001)]
    assert 540 < drawn.count(Fault("429")) < 660
    assert 150 < drawn.count(Fault("reset", "after")) < 250


def test_a_seed_alone_is_some_of_everything_on_every_route():
    drawn = {
        Faults(seed=1).decide(Arrival("GET", "", route, count))
        for route in (LIST, "POST /traces")
        for count in range(1, 1500)
    }
    kinds = {fault.kind for fault in drawn - {None}}
    assert kinds >= {"429", "500", "502", "503", "504", "reset", "html", "truncated", "refuse"}
    assert {fault.when for fault in drawn - {None}} == {"before", "after", "late"}


# -- how they are written ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault", "written"),
    [
        ("502", Fault("502"), "502 before"),
        ("reset after", Fault("reset", "after"), "reset after"),
        ("504 late 8", Fault("504", "late", 8.0), "504 late 8"),
        ("slow 0.5", Fault("slow", "after", 0.5), "slow 0.5"),
        ("truncated", Fault("truncated", "after"), "truncated"),
        ("hang  before", Fault("hang"), "hang before"),
        ("restart 3", Fault("restart", "before", 3.0), "restart before 3"),
        ("429 retry-after=2", Fault("429", retry_after=2), "429 before retry-after=2"),
        (
            " 503 late 1 retry-after=date+9 ",
            Fault("503", "late", 1.0, 9, as_date=True),
            "503 late 1 retry-after=date+9",
        ),
    ],
)
def test_a_fault_is_written_as_a_text_and_reads_back(text, fault, written):
    assert Fault.parse(text) == fault
    assert str(fault) == written
    assert Fault.parse(written) == fault


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not a fault"),
        ("explode", "is not known"),
        ("200", "is not known"),
        ("600 before", "is not known"),
        ("502 sometimes", "is not a fault"),
        ("502 late", "needs its seconds"),
        ("slow", "needs its seconds"),
        ("restart", "needs its seconds"),
        ("slow before 2", "has no 'before'"),
        ("truncated late 1", "has no 'late'"),
        ("502 before 3", "takes no such seconds"),
        ("slow -1", "is not a fault"),
        ("reset before retry-after=1", "only a status"),
        ("429 retry-after=soon", "is not a fault"),
    ],
)
def test_a_text_that_is_no_fault_is_an_error_that_says_why(text, problem):
    with pytest.raises(ValueError, match=problem):
        Faults({"*": text})


@pytest.mark.parametrize(
    ("routes", "problem"),
    [
        ({"*": {"429": 1.5}}, "from 0 to 1"),
        ({"*": {"429": 0.6, "500": 0.6}}, "at most 1 together"),
        ({"*": {"429": -0.1}}, "from 0 to 1"),
        ({"evaluations": "429"}, "is no route"),
    ],
)
def test_rules_that_make_no_sense_are_errors(routes, problem):
    with pytest.raises(ValueError, match=problem):
        Faults(routes)


def test_a_name_that_fits_no_route_is_an_error_that_lists_the_routes(faulty):
    faults = Faults({"POST /evaluation/{id}/samples": "429"})
    for use in (lambda: LocalPlatform(faults=faults), lambda: setattr(faulty, "faults", faults)):
        with pytest.raises(ValueError, match=r"no route.*POST /evaluations/\{evaluation_id\}/sam"):
            use()


def test_faults_are_parsed_from_one_line():
    spec = "seed=7; POST /traces=reset after, none, 502 late 8; *=429 retry-after=1@0.25,html@0.5"
    faults = Faults.parse(spec)
    assert faults == Faults(
        {
            "POST /traces": ["reset after", None, "502 late 8"],
            "*": {"429 retry-after=1": 0.25, "html": 0.5},
        },
        seed=7,
    )
    assert Faults.parse("seed=7") == Faults(seed=7)


@pytest.mark.parametrize("spec", ["seed=x", "*", "*=429@often", "*=429@0.1,502", "GET=429", "=429"])
def test_a_line_that_cannot_be_parsed_is_an_error(spec):
    with pytest.raises(ValueError, match=r"is not a fault|is no route|literal|could not|its @RATE"):
        Faults.parse(spec)
