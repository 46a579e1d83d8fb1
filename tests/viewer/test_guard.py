"""Who gets in, and who does not: real requests to a real port."""

import errno
import http.client
import socket
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as websocket

from stepwell.viewer.server import Server, listening
from tests.viewer.serving import Viewer, serving

SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"


def ask(viewer: Viewer, path: str = "/", **headers: str) -> httpx.Response:
    """A request without the cookie."""
    return httpx.get(f"http://127.0.0.1:{viewer.server.port}{path}", headers=headers, timeout=60)


def cookie_of(viewer: Viewer) -> str:
    return f"stepwell-{viewer.server.port}={viewer.server.token}"


# The token.


@pytest.mark.parametrize(
    "path",
    ["/", "/data/0/about", "/_nicegui/none.js", "/_nicegui_ws/socket.io/?EIO=4&transport=polling"],
)
def test_without_a_token_nothing_is_answered(viewer: Viewer, path: str) -> None:
    answer = ask(viewer, path)
    assert answer.status_code == 403
    assert answer.text.startswith("a token is needed: open the address")


@pytest.mark.parametrize("token", ["", "x", "ü", "%00", "A" * 10_000])
def test_a_wrong_token_is_a_sentence(viewer: Viewer, token: str) -> None:
    answer = httpx.get(viewer.server.address.partition("?")[0], params={"token": token}, timeout=60)
    assert answer.status_code == 403
    assert answer.text.startswith("the token is wrong")
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("cookie", ["stepwell-1=x", "=;;=", "a b c", "stepwell={port}"])
def test_a_wrong_cookie(viewer: Viewer, cookie: str) -> None:
    text = cookie.replace("{port}", viewer.server.token)
    assert ask(viewer, cookie=text).status_code == 403


@pytest.mark.parametrize("other", ['a="2|1:0|10:17"', "odd[]=1; b", "{j: 1}", "=", "x=%FC"])
def test_cookies_of_other_programs_are_in_nobodys_way(viewer: Viewer, other: str) -> None:
    """Those of other ports of this host come along."""
    assert ask(viewer, cookie=f"{other}; {cookie_of(viewer)}; more").status_code == 200


def test_the_token_becomes_a_cookie_and_leaves_the_address(viewer: Viewer) -> None:
    url = viewer.server.url("/s/0/runs", {"where": "score > 5 AND name = 'ä&b'"})
    answer = httpx.get(url, timeout=60)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/s/0/runs?where=score+%3E+5+AND+name+%3D+%27%C3%A4%26b%27"
    cookie = answer.headers["set-cookie"]
    assert cookie == f"{cookie_of(viewer)}; Path=/; HttpOnly; SameSite=Lax"
    assert ask(viewer, cookie=cookie.partition(";")[0]).status_code == 200
    assert ask(viewer, "/?token=wrong", cookie=cookie.partition(";")[0]).status_code == 303


@pytest.mark.parametrize("path", ["//evil.example/x", "/\\evil.example", "/a%0d%0aset-cookie:%20b"])
def test_a_token_leads_nowhere_else(viewer: Viewer, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", viewer.server.port)
    connection.putrequest("GET", f"{path}?token={viewer.server.token}", skip_host=True)
    connection.putheader("host", "localhost")
    connection.endheaders()
    answer = connection.getresponse()
    location = answer.getheader("location") or ""
    connection.close()
    assert answer.status == 303
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))
    assert "\r" not in location
    assert answer.headers.get_all("set-cookie") == [
        f"{cookie_of(viewer)}; Path=/; HttpOnly; SameSite=Lax"
    ]


def test_a_code_is_good_for_one_load(viewer: Viewer) -> None:
    code = viewer.server.guard.one_time_code()
    first, second = (ask(viewer, f"/?token={code}") for _ in range(2))
    assert first.status_code == 303
    assert second.status_code == 403
    kept = first.headers["set-cookie"].partition(";")[0]
    assert ask(viewer, f"/?token={code}", cookie=kept).status_code == 303
    codes = [viewer.server.guard.one_time_code() for _ in range(20)]
    assert ask(viewer, f"/?token={codes[0]}").status_code == 403  # only the last ones are kept
    assert ask(viewer, f"/?token={codes[-1]}").status_code == 303


def test_each_server_has_its_own_token(viewer: Viewer) -> None:
    with serving() as other:
        assert other.server.port != viewer.server.port
        assert ask(other, cookie=cookie_of(viewer)).status_code == 403
        named = f"stepwell-{other.server.port}={viewer.server.token}"
        assert ask(other, cookie=named).status_code == 403
    with pytest.raises(httpx.ConnectError):
        ask(other)
    assert viewer.get("/").status_code == 200


# Other sites.


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]", "10.0.0.1"]
)
def test_another_host_is_refused(viewer: Viewer, host: str) -> None:
    """A name of theirs that leads to this machine: DNS rebinding."""
    answer = ask(viewer, cookie=cookie_of(viewer), host=host)
    assert answer.status_code == 421
    assert answer.text.startswith("expected the viewer's own host")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1234", "LOCALHOST:9", "[::1]:80"])
def test_its_own_hosts_whatever_the_port(viewer: Viewer, host: str) -> None:
    """Through a tunnel it has another port."""
    assert ask(viewer, cookie=cookie_of(viewer), host=host).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost", "", "x"])
def test_another_origin_is_refused(viewer: Viewer, origin: str) -> None:
    answer = ask(viewer, cookie=cookie_of(viewer), origin=origin)
    assert answer.status_code == 403
    assert "other sites" in answer.text


def test_its_own_origin(viewer: Viewer) -> None:
    own = f"http://127.0.0.1:{viewer.server.port}"
    assert ask(viewer, cookie=cookie_of(viewer), origin=own).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_page_embeds_is_refused(viewer: Viewer, site: str) -> None:
    """Pages at other ports of this host would be sent the cookie along."""
    about = {"sec-fetch-site": site, "cookie": cookie_of(viewer)}
    assert ask(viewer, "/data/0/about", **about, **{"sec-fetch-mode": "no-cors"}).status_code == 403
    assert ask(viewer, **about, **{"sec-fetch-mode": "navigate"}).status_code == 200  # a link


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(viewer: Viewer, method: str) -> None:
    for path in ("/", "/data/0/runs", "/_nicegui/client/upload/1"):
        answer = viewer.client.request(method, path)
        assert answer.status_code == 405
        assert answer.text == f"nothing can be changed here: expected GET, got {method}\n"


def test_browsers_are_told_to_keep_to_this_site(viewer: Viewer) -> None:
    for answer in (viewer.get("/"), ask(viewer)):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "http:" not in policy
        assert answer.headers["x-frame-options"] == "SAMEORIGIN"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


# WebSockets.


def connect(viewer: Viewer, *, path: str = SOCKET, **headers: Any) -> str:
    """The first message that a WebSocket gets."""
    url = f"ws://127.0.0.1:{viewer.server.port}{path}"
    origin = headers.pop("origin", f"http://127.0.0.1:{viewer.server.port}")
    with websocket(url, origin=origin, additional_headers=headers) as opened:
        return str(opened.recv())


def test_a_socket_of_its_own_page(viewer: Viewer) -> None:
    assert connect(viewer, cookie=cookie_of(viewer)).startswith('0{"sid"')


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"cookie": "stepwell-1=x"},
        {"cookie": "own", "origin": "http://evil.example"},
        {"cookie": "own", "origin": "null"},
        {"cookie": "own", "origin": None},
    ],
    ids=["no cookie", "wrong cookie", "another site", "null", "no origin"],
)
@pytest.mark.parametrize("path", [SOCKET, "/data/lane?run=x"])
def test_sockets_of_others_are_refused(viewer: Viewer, path: str, headers: dict[str, Any]) -> None:
    if headers.get("cookie") == "own":
        headers = {**headers, "cookie": cookie_of(viewer)}
    with pytest.raises(InvalidStatus) as raised:
        connect(viewer, path=path, **headers)
    assert raised.value.response.status_code == 403


def test_a_token_in_the_address_of_a_socket_is_no_cookie(viewer: Viewer) -> None:
    with pytest.raises(InvalidStatus):
        connect(viewer, path=f"{SOCKET}&token={viewer.server.token}")


# What is outside.


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/data/../../../etc/passwd",
        "/data/0/../../etc/passwd",
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/_nicegui/../../../etc/passwd",
        "/_nicegui/3.18.0/static/..%2f..%2fpyproject.toml",
        "/_nicegui/3.18.0/components/..%2f..%2f..%2fetc%2fpasswd",
        "/_nicegui/3.18.0/resources/x/..%2f..%2fetc%2fpasswd",
        "/etc/passwd",
        "//etc/passwd",
        "/s/..%2f..",
        "/data/-1/about",
        "/data/%2e%2e/about",
        "/docs",
        "/openapi.json",
    ],
)
def test_no_path_leads_out(viewer: Viewer, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", viewer.server.port)
    connection.putrequest("GET", path)  # as it stands: httpx would tidy it up
    connection.putheader("cookie", cookie_of(viewer))
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status in (400, 404, 422), body
    assert b"root:" not in body
    assert b"class Server" not in body


def test_keys_are_no_paths(viewer: Viewer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret words")
    np.save(tmp_path / "rows.npy", np.arange(5))
    number = viewer.add(tmp_path / "rows.npy").number
    for key in ("../secret", str(tmp_path / "secret"), "%2e%2e/secret", "\0"):
        for route in ("run", "chunk", "thumb"):
            answer = viewer.get(f"/data/{number}/{route}", key=key)
            assert answer.status_code == 400
            assert "secret words" not in answer.text


# Ports.


def test_answers_are_not_held_back() -> None:
    """By which asyncio knows that it may send small ones at once."""
    with listening("127.0.0.1", 0) as found:
        assert found.proto == socket.IPPROTO_TCP


def test_a_port_in_use_gives_the_next_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = Server(port=port)
        found.stop()
        assert found.port > port
    with listening("127.0.0.1", 0) as any_:
        assert any_.getsockname()[1] > 0


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.1:80[0-9]*: ") as raised:
        Server(host="192.0.2.1", port=8050)
    assert raised.value.errno == errno.EADDRNOTAVAIL


def test_only_this_machine_by_default() -> None:
    server = Server(port=0)
    server.stop()
    assert (server.host, server.local) == ("127.0.0.1", True)


def test_at_another_address_names_and_numbers_of_the_machine_are_its_hosts() -> None:
    with serving(host="0.0.0.0") as viewer:
        assert not viewer.server.local
        for host, status in (
            (socket.gethostname(), 200),
            ("10.1.2.3:8050", 200),
            ("[fe80::1]", 200),
            ("evil.example", 421),
            ("10.1.2.3.evil.example", 421),
        ):
            assert ask(viewer, cookie=cookie_of(viewer), host=host).status_code == status
        assert ask(viewer).status_code == 403  # the token is needed here, too
        assert viewer.server.url("/").startswith(f"http://{socket.gethostname()}:")
