"""`stepwell view`: stores in a browser."""

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from stepwell.cli.console import JsonOption, err, local_path, print_json, say, show, visible

HostOption = Annotated[
    str, typer.Option(help="Where to listen; other machines can reach any but this address.")
]
PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="The port, or the next one that is free; 0 for any.")
]
NoOpenOption = Annotated[bool, typer.Option("--no-open", help="Open no browser.")]


def view(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH…", help="Stores, files, URLs, or folders of them.")
    ],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8050,
    no_open: NoOpenOption = False,
    episode: Annotated[
        str | None, typer.Option(metavar="ID", help="Show this run or episode.")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=local_path,
            help="Write a page of --episode, or of the first one, that needs no server; then end.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show stores in a browser: runs, episodes, rows, live and later. Needs the extra `viewer`.

    The address that is printed has a token, which a browser keeps. Nothing can be changed there,
    and nothing but PATH be reached. Ctrl-C ends it.
    """
    from stepwell.viewer.browser import find_episode, load, page_of

    shelf, _ = load()
    if not all(paths):  # which is the folder we are in, for Path
        raise ValueError("PATH: expected a path or a URL, got an empty text")
    entries = [entry for path in paths for entry in shelf.add(path)]
    page: tuple[str, Mapping[str, Any]] = "/", {}
    if episode is not None or export is not None:
        entry, key = find_episode(entries, episode)
        if export is not None:
            from stepwell.viewer.export import export_episode

            export_episode(entry.store, key, export)
            show({"path": str(export), "store": entry.path, "episode": str(key)}, as_json)
            return
        page = page_of(entry.number, key)
    serve(*page, host=host, port=port, no_open=no_open, as_json=as_json)


def serve(
    path: str,
    query: Mapping[str, str | Sequence[str]],
    *,
    host: str,
    port: int,
    no_open: bool,
    as_json: bool,
) -> NoReturn:
    """Show a page of the viewer until Ctrl-C."""
    from stepwell.viewer.browser import load, open_browser

    shelf, new_server = load()
    server = new_server(host=host, port=port)
    server.start()
    url = server.url(path, query)
    with suppress(KeyboardInterrupt):
        if as_json:
            stores = [entry.path for entry in shelf.entries]
            print_json({"url": url, "host": server.host, "port": server.port, "stores": stores})
        else:
            if port not in (0, server.port):
                say(f"port {port} is in use: at {server.port} instead")
            if not server.local:
                say("other machines can reach this address; whoever has it can see the stores")
            elif "SSH_CONNECTION" in os.environ:
                forward = f"ssh -L {server.port}:127.0.0.1:{server.port}"
                say(f"from another machine: {forward} {server.hostname}, then open")
            say(url)
        sys.stdout.flush()
        if not no_open:
            open_browser(url)
        threading.Event().wait()
    if err.is_terminal:
        err.print()  # it has written ^C, and the prompt would follow on that line
    # At once, whoever is connected and whatever is being computed for them: nothing is written.
    os._exit(130)


def start_page(root: str, run_id: str) -> None:
    """Show a run that is being recorded, for as long as the process lives."""
    from stepwell.viewer.browser import load, open_browser

    shelf, new_server = load()
    shelf.add(root)
    server = new_server()
    server.start()
    url = server.url("/live", {"run": run_id})
    err.print(visible(url), markup=False, soft_wrap=True)
    open_browser(url)
