"""An HTTP server in front of another one, which does wrong what it is told to.

with Proxy(host, port) as proxy:
    proxy.fault = times(2, status(500), of=".shard")
    ...                             requests to proxy.url are answered by the other server
    proxy.requests                  what was asked for
    proxy.most_in_flight            bytes that were asked for and not yet sent, at most
"""

import http.client
import re
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

__all__ = ["Answer", "Proxy", "Request", "changed", "cut", "short", "status", "times"]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    begin: int = 0
    """Of the range that is asked for."""
    end: int = 0

    @property
    def size(self) -> int:
        return self.end - self.begin


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    sent: int | None = None
    """How much of the body is sent before the connection is closed; None for all of it."""


Fault = Callable[[Request, Answer], Answer | None]
"""What becomes of an answer; None closes the connection without one."""


# Faults.


def status(code: int) -> Fault:
    """Another status, with the body that S3 has for it."""
    body = b"<Error><Code>Injected</Code><Message>as the test wants it</Message></Error>"
    return lambda request, answer: Answer(code, {"Content-Type": "application/xml"}, body)


def cut(request: Request, answer: Answer) -> Answer:
    """Half of the body, then the end of the connection."""
    answer.sent = len(answer.body) // 2
    return answer


def short(request: Request, answer: Answer) -> Answer:
    """Half of the body, with a length that says so."""
    answer.body = answer.body[: len(answer.body) // 2]
    return answer


def changed(request: Request, answer: Answer) -> Answer:
    """One other byte."""
    at = len(answer.body) // 2
    answer.body = answer.body[:at] + bytes([answer.body[at] ^ 1]) + answer.body[at + 1 :]
    return answer


def dropped(request: Request, answer: Answer) -> None:
    """No answer at all."""


def times(count: int | None, fault: Fault, *, of: str = "") -> Fault:
    """A fault of the first `count` requests whose path has this in it; of all, without a number."""
    lock = threading.Lock()
    left = count

    def some(request: Request, answer: Answer) -> Answer | None:
        nonlocal left
        with lock:
            if of not in request.path or left == 0:
                return answer
            if left is not None:
                left -= 1
        return fault(request, answer)

    return some


# The server.


class Proxy:
    def __init__(self, host: str, port: int) -> None:
        self.latency_s = 0.0
        self.fault: Fault | None = None
        self.before: Callable[[Request], None] | None = None
        """Called with each request, before the other server gets it."""
        self.ignored: tuple[str, ...] = ()
        """Headers that the other server does not get."""
        self.requests: list[Request] = []
        self.most_in_flight = 0
        self._in_flight = 0
        self._released = threading.Event()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._target = host, port
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def forget(self) -> None:
        """As if nothing had been asked for, and without a fault."""
        self._released.set()
        self._released = threading.Event()
        self.fault, self.latency_s, self.most_in_flight = None, 0.0, 0
        self.before, self.ignored = None, ()
        self.requests.clear()

    def asked_for(self, text: str) -> list[Request]:
        return [request for request in self.requests if text in request.path]

    def hang(self, request: Request, answer: Answer) -> None:
        """A fault: no answer before the end of the test."""
        self._released.wait(100)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # Below this line: for the handler.

    def begin(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            self._in_flight += request.size
            self.most_in_flight = max(self.most_in_flight, self._in_flight)

    def end(self, request: Request) -> None:
        with self._lock:
            self._in_flight -= request.size

    def answered(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """The same, one write at a time: moto looks at conditions first and writes then."""
        with self._writing if method == "PUT" else nullcontext():
            return self.ask(method, path, headers, body)

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection(*self._target, timeout=60)
        try:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            kept = {
                name: value
                for name, value in response.getheaders()
                if name.lower() not in ("connection", "transfer-encoding", "content-length")
            }
            if method == "HEAD":
                kept["Content-Length"] = response.getheader("Content-Length", "0")
            return Answer(response.status, kept, response.read())
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are what is tested."""


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_one(self) -> None:
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            places = (int(wanted[1]), int(wanted[2]) + 1) if wanted else ()
            request = Request(self.command, self.path, *places)
            proxy.begin(request)
            try:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                time.sleep(proxy.latency_s)
                headers = {n: v for n, v in self.headers.items() if n.lower() not in proxy.ignored}
                if proxy.before is not None:
                    proxy.before(request)
                answer: Answer | None = proxy.answered(self.command, self.path, headers, body)
                if proxy.fault is not None and answer is not None:
                    answer = proxy.fault(request, answer)
                last = b"" if answer is None else self._send(answer)
            finally:
                # Whoever has the last byte may ask for more before we are back from sending it.
                proxy.end(request)
            self.wfile.write(last)
            self.close_connection |= answer is None or answer.sent is not None

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PROPFIND = handle_one

        def _send(self, answer: Answer) -> bytes:
            """Send all but the last byte, which is returned."""
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if "Content-Length" not in answer.headers:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            body = b"" if self.command == "HEAD" else answer.body[: answer.sent]
            self.wfile.write(body[:-1])
            return body[-1:]

        def log_message(self, *args: Any) -> None:
            pass

    return Handler
