"""Who may talk to the viewer: whoever has the token, from a page of its own.

Other users of the machine can reach its port, and so can any web page that the user has open. The
token is in the address that is printed; the first load puts it into a cookie, so that links are
without it. A request for another host than the viewer's is refused (a name that was bound to this
address later), and so is one that another site's page makes, and any that could change something.
"""

import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
    "font-src 'self' data:; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "worker-src 'self' blob:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'self'"
)
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_PREFIX = re.compile(r"(?:/[\w.~%@+-]+)*")
_CODES = 16
_SOCKET = "/_nicegui_ws/"


class Guard:
    """An ASGI application in front of the viewer's.

    `hosts` are the names that it answers to besides those of this machine, "*" any; with
    `addresses` also numbers, to which no name can be bound.
    """

    def __init__(
        self,
        app: Any,
        token: str,
        port: int,
        hosts: Iterable[str] = (),
        *,
        addresses: bool = False,
    ) -> None:
        self._app, self._token = app, token
        self._cookie = f"stepwell-{port}"  # cookies are shared by the ports of a host
        self._hosts = _LOCAL | {host.lower() for host in hosts}
        self._addresses = addresses
        self._codes: list[str] = []

    def one_time_code(self) -> str:
        """A token that is good for one load; one that is kept somewhere opens nothing later."""
        code = secrets.token_urlsafe(24)
        self._codes = [*self._codes, code][-_CODES:]
        return code

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1").lower(): text.decode("latin-1")
            for name, text in scope["headers"]
        }
        problem = self._problem(scope, headers)
        if problem:
            await _refuse(scope, receive, send, *problem)
            return
        known = self._is_token(self._from_cookie(headers.get("cookie", "")))
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = [text for name, text in query if name == "token"]
        if given and scope["type"] == "http":
            if not (self._is_token(given[-1]) or self._used_up(given[-1]) or known):
                problem = 403, "the token is wrong; the viewer printed its address when it started"
                await _refuse(scope, receive, send, *problem)
                return
            rest = urlencode([(name, text) for name, text in query if name != "token"])
            prefix = _prefix(headers)
            target = f"{prefix}/{quote(scope['path'].lstrip('/'))}" + (f"?{rest}" if rest else "")
            cookie = f"{self._cookie}={self._token}; Path={prefix or '/'}; HttpOnly; SameSite=Lax"
            await _answer(send, 303, "", [("location", target), ("set-cookie", cookie)])
            return
        if not known:
            sentence = "a token is needed: open the address that the viewer printed when it started"
            await _refuse(scope, receive, send, 403, sentence)
            return
        try:
            await self._app(scope, receive, _with_headers(send))
        except RuntimeError as error:
            # A browser that went on before the answer was there; Starlette makes an error of it.
            if str(error) != "No response returned.":
                raise

    def _problem(self, scope: Any, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return 421, f"expected the viewer's own host, got {host[:100]!r}"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return 403, "requests of other sites are refused"
        if origin is None and scope["type"] == "websocket":
            return 403, "expected an origin"
        site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
        if site not in ("none", "same-origin") and mode != "navigate":
            return 403, "requests of other sites are refused"
        if scope["type"] == "http" and not _only_reads(scope["method"], scope["path"]):
            return 405, f"nothing can be changed here: expected GET, got {scope['method'][:20]}"
        return None

    def _is_ours(self, host: str) -> bool:
        name = _name(host)
        if name in self._hosts or "*" in self._hosts:
            return True
        return self._addresses and _is_address(name)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _used_up(self, given: str) -> bool:
        """Whether a one-time code is right; it is not from here on."""
        for code in self._codes:
            if hmac.compare_digest(given.encode(), code.encode()):
                self._codes.remove(code)
                return True
        return False

    def _from_cookie(self, text: str) -> str:
        # Python's own parser gives up at the first odd cookie, which may be any other program's.
        for part in text.split(";"):
            name, _, value = part.strip().partition("=")
            if name == self._cookie:
                return value
        return ""


def _name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _only_reads(method: str, path: str) -> bool:
    """Whether a request is one that pages make; their connection may be made of POST, too."""
    return method in ("GET", "HEAD") or (method == "POST" and path.startswith(_SOCKET))


def _prefix(headers: dict[str, str]) -> str:
    """The path under which a proxy shows the viewer; empty without one."""
    given = headers.get("x-forwarded-prefix", "").rstrip("/")
    return given if _PREFIX.fullmatch(given) else ""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _refuse(scope: Any, receive: Any, send: Any, status: int, sentence: str) -> None:
    if scope["type"] == "websocket":
        await receive()  # which connects; a server answers a close before that with 403
        await send({"type": "websocket.close", "code": 1008, "reason": sentence})
        return
    await _answer(send, status, sentence + "\n", [("content-type", "text/plain; charset=utf-8")])


async def _answer(send: Any, status: int, text: str, headers: list[tuple[str, str]]) -> None:
    body = text.encode()
    about = [("content-length", str(len(body))), ("cache-control", "no-store"), *headers]
    encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in about]
    encoded += _HEADERS
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
"""Rules for browsers, with every answer."""


def _with_headers(send: Any) -> Any:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
        await send(message)

    return sending
