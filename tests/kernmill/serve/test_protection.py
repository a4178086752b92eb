"""Who may use the server, and what is refused before it is read."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Generator

import pytest

from kernmill.ir import SettingError
from kernmill.serve.limits import ServerOptions
from kernmill.serve.running import check_options

from .conftest import Running, loaded, running

BODY = {"prompt": "Once", "max_tokens": 1}


@pytest.fixture(scope="module")
def closed(stories: str) -> Generator[Running]:
    """A server with two keys, a page of another origin, a prefix and a small limit of bodies."""
    options = ServerOptions(api_keys=("one", "two"), cors_origins=("https://a.example",), body_bytes=1000)
    with running({"stories": stories}, options, loaded) as found:
        yield found


def test_a_key_is_needed(closed: Running) -> None:
    refused = closed.ask("/v1/completions", BODY)
    assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
    assert refused.headers["www-authenticate"] == "Bearer"
    for headers in ({"Authorization": "Bearer two"}, {"X_Api_Key": "one"}):
        assert closed.ask("/v1/completions", BODY, **headers).status == 200
    for headers in ({"Authorization": "Bearer three"}, {"Authorization": "two"}, {"Authorization": "Bearer "}):
        assert closed.ask("/v1/completions", BODY, **headers).status == 401
    assert closed.ask("/health").status == closed.ask("/").status == 200
    assert closed.ask("/v1/models").status == closed.ask("/metrics").status == closed.ask("/props").status == 401


def test_other_origins_are_named_or_refused(closed: Running, server: Running) -> None:
    allowed = closed.ask("/health", Origin="https://a.example")
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-origin" not in closed.ask("/health", Origin="https://b.example").headers
    assert "access-control-allow-origin" not in server.ask("/health", Origin="https://a.example").headers
    assert closed.ask("/v1/completions", method="OPTIONS", Origin="https://a.example").status == 204
    assert server.ask("/v1/completions", method="OPTIONS", Origin="https://a.example").status == 405


def test_a_host_that_is_not_the_servers_is_refused(server: Running) -> None:
    """A page whose name leads to 127.0.0.1 sends its own name."""
    assert server.ask("/health", Host="evil.example").status == 421
    assert server.ask("/health", Host="localhost:1").status == server.ask("/health", Host="[::1]:80").status == 200


def test_a_body_must_be_json_and_short(closed: Running, server: Running) -> None:
    key = {"Authorization": "Bearer one"}
    assert server.ask("/v1/completions", b"{}", Content_Type="text/plain").status == 415
    assert closed.ask("/v1/completions", {"prompt": "a" * 1000}, **key).status == 413
    connection = http.client.HTTPConnection("127.0.0.1", closed.port, timeout=30)
    parts = (b" " * 400 for _ in range(5))  # without a length
    connection.request(
        "POST", "/v1/completions", parts, {"Content-Type": "application/json", **key}, encode_chunked=True
    )
    assert connection.getresponse().status in (400, 413)
    connection.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/9\r\n\r\n",
        b"\x16\x03\x01 garbage\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000,
    ],
    ids=range(3),
)
def test_what_is_not_http_is_answered_or_closed(server: Running, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(sent)
        try:
            answer = connection.recv(1000)
        except ConnectionResetError:
            answer = b""
        assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert server.ask("/health").status == 200


def test_another_address_needs_a_key() -> None:
    with pytest.raises(SettingError) as error:
        check_options(ServerOptions(host="0.0.0.0"))
    assert str(error.value) == (
        "serve: --host 0.0.0.0 is reachable from other machines, and there is no API key: everybody could use the "
        "models. Give one with --api-key KEY, or listen on 127.0.0.1."
    )
    check_options(ServerOptions(host="0.0.0.0", api_keys=("k",)))
    check_options(ServerOptions(host="localhost"))
