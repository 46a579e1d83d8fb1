"""A notebook's server: a page with the result of a cell, and a proxy to ports of the machine.

It does to requests what jupyter-server-proxy does: `/user/ada/proxy/8050/x` becomes `/x` at that
port, with the host and the cookies of the browser, and with the prefix in a header.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PREFIX = "/user/ada/"


class Notebook:
    """The server; `cell` is what its page shows."""

    def __init__(self) -> None:
        self.cell = ""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://localhost:{self._socket.getsockname()[1]}{PREFIX}"

    def run(self) -> None:
        with suppress(OSError):  # closed
            while True:
                browser, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(browser,), daemon=True).start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _answer(self, browser: socket.socket) -> None:
        with browser, suppress(OSError):
            head, _, rest = _until_blank(browser)
            if not head:
                return
            (method, target, version), *lines = (line.split(b" ") for line in head.split(b"\r\n"))
            path = target.decode()
            if not path.startswith(f"{PREFIX}proxy/"):
                page = f"<!doctype html><title>notebook</title>{self.cell}".encode()
                about = b"content-type: text/html; charset=utf-8\r\nconnection: close\r\n"
                browser.sendall(b"HTTP/1.1 200 OK\r\n" + about + b"\r\n" + page)
                return
            port, _, inner = path.removeprefix(f"{PREFIX}proxy/").partition("/")
            kept = [b" ".join(line) for line in lines]
            if not any(line.lower().startswith(b"upgrade:") for line in kept):
                kept = [line for line in kept if not line.lower().startswith(b"connection:")]
                kept.append(b"connection: close")
            kept.append(f"x-forwarded-prefix: {PREFIX}proxy/{port}".encode())
            with socket.create_connection(("127.0.0.1", int(port))) as viewer:
                first = b" ".join([method, f"/{inner}".encode(), version])
                viewer.sendall(b"\r\n".join([first, *kept, b"", b""]) + rest)
                back = threading.Thread(target=_pipe, args=(viewer, browser), daemon=True)
                back.start()
                _pipe(browser, viewer)
                back.join()


def _until_blank(connection: socket.socket) -> tuple[bytes, bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b"", b"", b""
        data += more
    return data.partition(b"\r\n\r\n")


def _pipe(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def notebook() -> Iterator[Notebook]:
    made = Notebook()
    threading.Thread(target=made.run, daemon=True).start()
    yield made
    made.close()
