"""A viewer that is running, and requests as browsers make them."""

import io
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stepwell.store import Store
from stepwell.viewer.server import Server, shelf
from stepwell.viewer.shelf import Entry


class Viewer(NamedTuple):
    """A server, and a client that has its cookie."""

    server: Server
    client: httpx.Client

    def add(self, store: Path | Store) -> Entry:
        """Show a store; its entry has the number that addresses are made of."""
        return shelf.add_store(store) if isinstance(store, Store) else shelf.add(str(store))[0]

    def get(self, path: str, **query: Any) -> httpx.Response:
        return self.client.get(path, params=query)

    def json(self, path: str, **query: Any) -> Any:
        """What is answered to a request that can be answered."""
        answer = self.get(path, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def error(self, path: str, status: int, **query: Any) -> str:
        """The sentence that is answered to one that cannot."""
        answer = self.get(path, **query)
        assert answer.status_code == status, answer.text
        sentence = answer.json()["error"]
        assert isinstance(sentence, str)
        return sentence

    def chunk(self, number: int, key: Any, start: int, count: int) -> tuple[dict[str, Any], Any]:
        """A chunk: its header, and what its parts hold."""
        answer = self.get(f"/data/{number}/chunk", key=key, start=start, count=count)
        assert answer.status_code == 200, answer.text
        return parse(answer.content)


def parse(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header of a chunk, and its parts: arrays, or a list of files or texts."""
    (length,) = struct.unpack_from("<I", data)
    header = json.loads(data[4 : 4 + length])
    begin = 4 + length + -(4 + length) % 8
    parts: dict[str, Any] = {}
    for part in header["parts"]:
        assert part["offset"] % 8 == 0
        body = data[begin + part["offset"] :][: part["bytes"]]
        assert len(body) == part["bytes"]
        if part["type"] == "array":
            parts[part["name"]] = np.frombuffer(body, part["dtype"]).reshape(part["shape"])
        else:
            ends = np.cumsum([0, *part["lengths"]])
            assert ends[-1] == len(body)
            parts[part["name"]] = [body[a:b] for a, b in pairwise(ends)]
    return header, parts


@contextmanager
def serving(**options: Any) -> Iterator[Viewer]:
    """A viewer in this process, at some port."""
    server = Server(port=0, **options)
    server.start()
    base = f"http://127.0.0.1:{server.port}"
    try:
        with httpx.Client(base_url=base, timeout=60) as client:
            assert client.get("/", params={"token": server.token}).status_code == 303
            yield Viewer(server, client)
    finally:
        server.stop()


def number_of(viewer: Viewer, path: Path) -> int:
    """The number that a store has in addresses."""
    return viewer.add(path).number


def pixels(png: bytes) -> NDArray[Any]:
    """What a picture shows."""
    return np.asarray(Image.open(io.BytesIO(png)))
