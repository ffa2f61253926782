"""The way to the platform is httpx's own: its proxies, its certificates, its exceptions to both."""

import datetime as dt
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from prefect_prime import errors
from prefect_prime.credentials import Credentials

KEY = "pit_0123456789abcdef"
PASSWORD = "hunter2"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    """Whatever this machine needs to reach the world, these tests do not."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A key and a certificate for 127.0.0.1 that nobody but its holder trusts, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a platform")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("certificate") / "platform.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


@dataclass
class Served:
    url: str
    keys: list[str] = field(default_factory=list)


@pytest.fixture
def secure(certificate) -> Iterator[Served]:
    """A platform and a Prime Traces behind TLS."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            served.keys.append(self.headers["Authorization"])
            content = b'{"upload_id": "an-id", "status": "committed"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _serve  # noqa: N815 - the base class looks for these names

        def log_message(self, *_: object) -> None:
            """Silent: pytest shows what a test asserts."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = Served(f"https://127.0.0.1:{server.server_port}")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield served
        server.shutdown()
        thread.join()


@dataclass
class Proxy:
    url: str
    seen: bytes = b""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy that opens tunnels, and remembers what it could read of the first bytes."""

    def serve() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:  # closed: the test is over
                return
            threading.Thread(target=tunnel, args=(near,), daemon=True).start()

    def tunnel(near: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n") and (more := near.recv(1)):
            head += more
        running.seen += head
        host, _, port = head.split()[1].decode().rpartition(":")
        with near, socket.create_connection((host, int(port))) as far:
            near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=pump, args=(far, near), daemon=True)
            back.start()
            pump(near, far)
            back.join()

    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                running.seen += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    listener = socket.create_server(("127.0.0.1", 0))
    running = Proxy(f"http://me:{PASSWORD}@127.0.0.1:{listener.getsockname()[1]}")
    thread = threading.Thread(target=serve)
    thread.start()
    yield running
    # A close alone does not wake `accept`.
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def ask_both(served: Served) -> None:
    credentials = Credentials(api_key=KEY, base_url=served.url, traces_url=served.url)
    with credentials.get_client(attempts=1) as client:
        client.get_evaluation("ev")
    with credentials.get_traces_client() as traces:
        traces.client.upload_batch(b"{}\n", "sha256:0")


def test_a_certificate_of_one_s_own_is_trusted_by_the_variable(secure, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    ask_both(secure)
    assert secure.keys == [f"Bearer {KEY}"] * 2


def test_a_certificate_that_nobody_vouches_for_gets_no_key(secure):
    credentials = Credentials(api_key=KEY, base_url=secure.url, traces_url=secure.url)
    with (
        credentials.get_client(attempts=1) as client,
        pytest.raises(errors.TransportError, match="CERTIFICATE_VERIFY_FAILED") as caught,
    ):
        client.get_evaluation("ev")
    assert not errors.is_ambiguous(caught.value)
    with credentials.get_traces_client() as traces, pytest.raises(errors.TransportError):
        traces.client.upload_batch(b"{}\n", "sha256:0")
    assert secure.keys == []


def test_a_proxy_carries_both_services_and_reads_neither(
    secure, certificate, proxy, monkeypatch, caplog
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    ask_both(secure)
    assert secure.keys == [f"Bearer {KEY}"] * 2
    assert proxy.seen.count(b"CONNECT 127.0.0.1:") == 2
    assert b"Proxy-Authorization: Basic " in proxy.seen
    assert KEY.encode() not in proxy.seen
    assert PASSWORD not in caplog.text
    assert KEY not in caplog.text


def test_what_needs_no_proxy_gets_none(secure, certificate, proxy, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    ask_both(secure)
    assert proxy.seen == b""


def test_a_proxy_that_is_not_there_is_an_error_that_shows_no_password(
    secure, closed_port, monkeypatch
):
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{PASSWORD}@127.0.0.1:{closed_port}")
    credentials = Credentials(api_key=KEY, base_url=secure.url)
    with (
        credentials.get_client(attempts=1) as client,
        pytest.raises(errors.TransportError) as caught,
    ):
        client.get_evaluation("ev")
    assert PASSWORD not in repr(caught.value)
    assert not errors.is_ambiguous(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SSL_CERT_FILE", "/nowhere/ca.pem"), ("HTTPS_PROXY", f"gopher://me:{PASSWORD}@proxy")],
)
def test_an_environment_that_httpx_cannot_use_is_named_by_the_traces_client_too(
    monkeypatch, variable, value
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(errors.ConfigurationError, match=variable) as caught:
        Credentials(api_key=KEY).get_traces_client()
    assert PASSWORD not in str(caught.value)
    assert caught.value.__context__ is None
