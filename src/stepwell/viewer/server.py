"""The viewer's servers: pages by NiceGUI, data by plain routes, a guard in front of both.

NiceGUI has one set of pages a process and cannot be started twice. So it has a thread of its own
for as long as the process lives; a `Server` is a port at which that can be reached, with a token of
its own.
"""

import asyncio
import errno
import secrets
import socket
import threading
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from functools import cache
from urllib.parse import urlencode

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from stepwell.viewer import live, pages
from stepwell.viewer.data import make_router
from stepwell.viewer.guard import Guard, is_loopback
from stepwell.viewer.shelf import Shelf

_PORTS = 100
_GRACE_S = 1
_STOP_S = 5

Query = Mapping[str, str | Sequence[str]]

shelf = Shelf()
"""Of this process, as the pages are."""


def listening(host: str, port: int) -> socket.socket:
    """A socket at a port, or at the next one that is free; 0 is any."""
    for number in range(port, min(port + _PORTS, 1 << 16)) if port else (0,):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With the protocol named, asyncio has answers sent at once; they would wait 40 ms.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen(128)  # from here on the port is ours
            return found
        except OSError as error:
            found.close()
            if error.errno != errno.EADDRINUSE:
                raise OSError(error.errno, f"{host}:{number}: {error.strerror or error}") from None
    raise OSError(errno.EADDRINUSE, f"{host}: expected a free port from {port} on, got none")


class Server:
    """The viewer at a port of this machine, from `start` to `stop`.

    `hosts` are names under which it can be reached besides its address; "*" stands for any, as
    behind a proxy that has a token of its own.
    """

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 8050, hosts: Sequence[str] = ()
    ) -> None:
        self._socket = listening(host, port)
        self.host, self.port = self._socket.getsockname()[:2]
        self.local = is_loopback(self.host)
        names = [self.host, *hosts]
        if not self.local:
            names += [self.hostname, socket.getfqdn()]
        self.token = secrets.token_urlsafe(24)
        self.guard = Guard(_app(), self.token, self.port, names, addresses=not self.local)
        self._server: uvicorn.Server | None = None
        self._served: Future[None] | None = None

    @property
    def address(self) -> str:
        """Where a browser finds it, token included."""
        return self.url("/")

    @property
    def hostname(self) -> str:
        """The name of this machine."""
        return socket.gethostname()

    def url(self, path: str, query: Query | None = None) -> str:
        """The address of a page, token included."""
        host = self.hostname if self.host in ("0.0.0.0", "::") else self.host
        host = f"[{host}]" if ":" in host else host
        given = urlencode({**(query or {}), "token": self.token}, doseq=True)
        return f"http://{host}:{self.port}{path}?{given}"

    def start(self) -> None:
        """Serve until `stop`, in the thread of the pages."""
        loop = _loop()  # NiceGUI looks at all servers when it starts, and wants them loaded
        config = uvicorn.Config(
            self.guard,
            log_level="warning",
            lifespan="off",
            server_header=False,
            ws_max_size=1 << 20,
            ws_per_message_deflate=False,  # frames are packed already
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = uvicorn.Server(config)
        serving = self._server.serve([self._socket])
        self._served = asyncio.run_coroutine_threadsafe(serving, loop)

    def stop(self) -> None:
        """Let go of the port. Browsers that are connected get to know it."""
        if self._server is None or self._served is None:
            self._socket.close()
            return
        self._server.should_exit = True
        self._served.result(_GRACE_S + _STOP_S)


@cache
def _app() -> FastAPI:
    """Pages and data, of this process."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(make_router(shelf))
    app.include_router(live.make_router(shelf))
    pages.register(shelf)
    # Without Tailwind, which browsers compile at each load: a third of the time to the first paint.
    ui.run_with(
        app,
        title="stepwell",
        dark=None,
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=30,
    )
    return app


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of the pages, which runs from here on."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    app, failed = _app(), list[BaseException]()

    async def live() -> None:
        try:
            async with AsyncExitStack() as stack:
                with warnings.catch_warnings():
                    # NiceGUI looks at every object of the process, and torch warns of some.
                    warnings.simplefilter("ignore")
                    await stack.enter_async_context(app.router.lifespan_context(app))
                ready.set()
                await asyncio.Event().wait()
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            ready.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(live())

    threading.Thread(target=run, name="stepwell viewer", daemon=True).start()
    ready.wait()
    if failed:
        raise RuntimeError(f"the viewer cannot be started: {failed[0]}")
    return loop
