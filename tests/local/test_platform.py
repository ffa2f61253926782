import errno
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from prefect_prime.local import LocalPlatform


def test_it_listens_on_this_machine_only_and_says_where(platform):
    assert platform.url.startswith("http://127.0.0.1:")
    assert not platform.url.endswith("/")
    assert httpx.get(platform.url).status_code == 200


def test_its_credentials_point_every_client_at_it(platform):
    credentials = platform.credentials
    urls = {credentials.base_url, credentials.frontend_url, credentials.traces_url}
    assert urls == {platform.url}
    assert credentials.team_id is None
    assert credentials.api_key.get_secret_value() not in repr(credentials)


def test_a_temporary_directory_goes_with_the_block():
    with LocalPlatform() as platform:
        directory = platform.directory
        assert directory.is_dir()
    assert not directory.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(platform.url)


def test_a_restart_on_the_same_directory_keeps_everything(
    tmp_path, connect, new_evaluation, post_traces
):
    directory = tmp_path / "made" / "for it"
    with LocalPlatform(directory) as platform:
        api = connect(platform)
        slug = platform.publish_environment("lab/kept")
        evaluation = new_evaluation(api, name="kept", metadata={"a": 1})
        api.post(f"/evaluations/{evaluation}/samples", json={"samples": [{"sample_id": "s"}]})
        post_traces(api, [{"id": "kept", "run": {"id": "r"}}])
        before = api.get(f"/evaluations/{evaluation}").json()
    assert [path.name for path in directory.iterdir()] == ["platform.sqlite"]
    with LocalPlatform(directory, api_key="another") as platform:
        api = connect(platform)
        after = api.get(f"/evaluations/{evaluation}").json()
        assert after | {"viewer_url": ""} == before | {"viewer_url": ""}
        assert after["viewer_url"].startswith(platform.url)
        assert api.get(f"/evaluations/{evaluation}/samples").json()["total"] == 1
        assert api.get("/traces/kept").json()["run_id"] == "r"
        assert api.get("/environmentshub/lab/kept/@latest").json()["data"]["id"] == slug
        replay = post_traces(api, [{"id": "kept", "run": {"id": "r"}}])
        assert replay.is_success


def test_the_key_is_nowhere_in_its_files(tmp_path, connect, new_evaluation):
    directory = tmp_path / "data"
    with LocalPlatform(directory, api_key="a-key-to-look-for") as platform:
        new_evaluation(connect(platform))
        files = list(directory.iterdir())
        assert files
        assert not any(b"a-key-to-look-for" in path.read_bytes() for path in files)
    assert b"a-key-to-look-for" not in (directory / "platform.sqlite").read_bytes()


def test_two_platforms_have_keys_of_their_own(platform, connect):
    with LocalPlatform() as other:
        foreign = other.credentials.api_key.get_secret_value()
        assert connect(platform, foreign).get("/evaluations/").status_code == 401


def test_requests_are_logged_with_their_status(connect):
    with LocalPlatform() as platform:
        api = connect(platform)
        api.get("/evaluations/")
        api.get("/evaluations/nobody")
        log = [(one.method, one.path, one.status) for one in platform.requests]
    assert log == [
        ("GET", "/api/v1/evaluations/", 200),
        ("GET", "/api/v1/evaluations/nobody", 404),
    ]


def test_a_taken_port_is_an_error_at_the_start(platform):
    port = int(platform.url.rpartition(":")[2])
    with pytest.raises(OSError, match="in use") as caught, LocalPlatform(port=port):
        pass
    assert caught.value.errno == errno.EADDRINUSE


def test_a_directory_with_another_file_of_that_name_is_an_error(tmp_path):
    (tmp_path / "platform.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(sqlite3.DatabaseError), LocalPlatform(tmp_path):
        pass


def test_tables_of_another_version_are_an_error_that_says_so(tmp_path):
    connection = sqlite3.connect(tmp_path / "platform.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(sqlite3.DatabaseError, match="version 99"), LocalPlatform(tmp_path):
        pass


def test_an_unknown_mode_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match="'accept', 'refuse', 'ignore'"):
        LocalPlatform(status_updates="sometimes")


def test_outside_its_block_it_has_no_url():
    platform = LocalPlatform()
    with pytest.raises(RuntimeError, match="with LocalPlatform"):
        _ = platform.url
    with pytest.raises(RuntimeError, match="with LocalPlatform"):
        _ = platform.directory


def test_it_runs_once():
    platform = LocalPlatform()
    with platform:
        pass
    with pytest.raises(RuntimeError, match="new LocalPlatform"), platform:
        pass


def fail(*_arguments):
    raise ZeroDivisionError("a bug in a route")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failure_of_a_route_is_a_500_and_raised_at_the_end(connect, monkeypatch):
    monkeypatch.setattr("prefect_prime.local.evaluations.find", fail)
    with pytest.raises(ZeroDivisionError), LocalPlatform() as platform:
        assert connect(platform).get("/evaluations/any").status_code == 500


def test_a_failure_of_the_block_wins_over_one_of_a_route(connect, monkeypatch):
    monkeypatch.setattr("prefect_prime.local.evaluations.find", fail)

    def use():
        with LocalPlatform() as platform:
            assert connect(platform).get("/evaluations/any").status_code == 500
            raise KeyError("the block's own")

    with pytest.raises(KeyError):
        use()


def test_a_failure_of_the_server_is_raised_at_the_start(monkeypatch):
    monkeypatch.setattr("uvicorn.Server.startup", fail)
    with pytest.raises(ZeroDivisionError), LocalPlatform():
        pass


def test_a_client_that_hangs_up_in_the_middle_is_no_failure():
    with LocalPlatform() as platform:
        port = int(platform.url.rpartition(":")[2])
        key = platform.credentials.api_key.get_secret_value()
        for path in ("/api/v1/traces", "/api/v1/evaluations/"):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
                head += f"Authorization: Bearer {key}\r\n\r\npart"
                connection.sendall(head.encode())
        assert httpx.get(platform.url).is_success


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_cannot_be_is_an_error(port):
    with pytest.raises(ValueError, match="port="):
        LocalPlatform(port=port)


def test_a_foreign_host_name_is_refused(platform):
    answer = httpx.get(platform.url, headers={"Host": "evil.example"})
    assert answer.status_code == 400


def test_no_thread_and_no_socket_stays_behind():
    threads = set(threading.enumerate())
    with LocalPlatform() as platform:
        port = int(platform.url.rpartition(":")[2])
        httpx.get(platform.url)
    left = {thread for thread in set(threading.enumerate()) - threads if thread.is_alive()}
    assert not [thread.name for thread in left if "local-platform" in thread.name]
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def run_in_foreground(*arguments, **environment):
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "prefect_prime.local", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=kept | {"HOME": "/nonexistent"} | environment,
    )


def read_announcement(process):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            return "".join(lines)
    raise AssertionError(process.stderr.read())


def exported(announcement):
    lines = (line.strip() for line in announcement.splitlines())
    return dict(
        line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export ")
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_it_announces_itself_and_ends_cleanly_on_a_signal(tmp_path, number):
    data = tmp_path / "data"
    process = run_in_foreground("--data", str(data), "--publish", "lab/gsm8k")
    with process:
        variables = exported(read_announcement(process))
        url, key = variables["PRIME_API_BASE_URL"], variables["PRIME_API_KEY"]
        assert variables["PRIME_TRACES_URL"] == variables["PRIME_FRONTEND_URL"] == url
        headers = {"Authorization": f"Bearer {key}"}
        path = "/api/v1/environmentshub/lab/gsm8k/@latest"
        assert httpx.get(url + path, headers=headers).is_success
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
    assert [path.name for path in data.iterdir()] == ["platform.sqlite"]
    assert key.encode() not in (data / "platform.sqlite").read_bytes()


@pytest.mark.parametrize("by", ["option", "environment"])
def test_in_the_foreground_a_given_key_is_used_and_not_printed(by):
    given = "my-own-key"
    if by == "option":
        process = run_in_foreground("--api-key", given, "--traces", "not_enabled")
    else:
        process = run_in_foreground("--traces", "not_enabled", PRIME_API_KEY=given)
    with process:
        announcement = read_announcement(process)
        url = exported(announcement)["PRIME_API_BASE_URL"]
        assert given not in announcement
        headers = {"Authorization": f"Bearer {given}"}
        assert httpx.get(f"{url}/api/v1/evaluations/", headers=headers).status_code == 200
        assert httpx.get(f"{url}/api/v1/traces", headers=headers).status_code == 403
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_in_the_foreground_it_misbehaves_as_told():
    process = run_in_foreground("--faults", "seed=1; GET /evaluations/=503 before,none")
    with process:
        variables = exported(read_announcement(process))
        url = f"{variables['PRIME_API_BASE_URL']}/api/v1/evaluations/"
        headers = {"Authorization": f"Bearer {variables['PRIME_API_KEY']}"}
        assert [httpx.get(url, headers=headers).status_code for _ in range(2)] == [503, 200]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_in_the_foreground_faults_that_make_no_sense_are_one_line_and_status_1():
    process = run_in_foreground("--faults", "GET /evaluation/=503")
    with process:
        assert process.wait(30) == 1
        assert len(process.stderr.read().splitlines()) == 1


def test_in_the_foreground_a_taken_port_is_one_line_and_status_1(platform):
    port = platform.url.rpartition(":")[2]
    process = run_in_foreground("--port", port)
    with process:
        assert process.wait(30) == 1
        assert process.stderr.read().startswith("The platform cannot start: ")


def test_what_it_reads_of_the_package_is_in_the_package():
    folder = Path(sys.modules["prefect_prime.local"].__file__).parent / "templates"
    assert {path.name for path in folder.iterdir()} == {
        "base.html",
        "episode.html",
        "evaluation.html",
        "index.html",
        "missing.html",
        "parts.html",
        "style.html",
    }
