"""A real S3 endpoint with corpora in it, and a proxy in front that can be told to fail.

All endpoints of a process have the same objects, so each test has names of its own.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import obstore
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
from numpy.typing import NDArray
from obstore.store import S3Store

from stepwell import ShardReader
from tests.proxy import Proxy
from tests.shards import build

__all__ = ["Bucket", "bucket"]

BUCKET = "activations"
KEYS: dict[str, Any] = {"region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}


class Bucket:
    """Folders of a bucket, as they are reached through the proxy."""

    def __init__(self, proxy: Proxy, host: str, port: int) -> None:
        self.proxy = proxy
        self._direct = f"http://{host}:{port}"

    def url(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"

    def http_url(self, name: str) -> str:
        return f"{self.proxy.url}/{BUCKET}/{name}"

    @property
    def options(self) -> dict[str, Any]:
        return {"endpoint": self.proxy.url, **KEYS}

    def store(self, name: str) -> Any:
        """What obstore has for it, past the proxy."""
        client: Any = {"allow_http": True}
        return S3Store(BUCKET, prefix=name, endpoint=self._direct, client_options=client, **KEYS)

    def objects(self, name: str) -> dict[str, bytes]:
        """Everything below a name, past the proxy."""
        store = self.store(name)
        return {path: bytes(obstore.get(store, path).bytes()) for path in self.names(name)}

    def names(self, name: str) -> list[str]:
        """The names of all of it."""
        return [each["path"] for some in obstore.list(self.store(name)) for each in some]

    def age(self, name: str, by: timedelta, part: str = "") -> None:
        """Let the server take objects with this in their names for older than they are."""
        for key, found in s3_backends["123456789012"]["aws"].buckets[BUCKET].keys.items():
            if key.startswith(f"{name}/") and part in key:
                found.last_modified -= by

    def upload(self, folder: Path, name: str) -> str:
        """The files of a folder, for everyone to read."""
        for path in folder.rglob("*"):
            if path.is_file():
                key = f"/{BUCKET}/{name}/{quote(str(path.relative_to(folder)))}"
                readable = {"x-amz-acl": "public-read"}
                assert self.proxy.ask("PUT", key, readable, path.read_bytes()).status == 200
        return self.url(name)

    def corpus(self, folder: Path, name: str, counts: Sequence[int], width: int) -> NDArray[Any]:
        """Shards of so many rows as `name`, with sums, and as `name`-bare, without a list."""
        build(folder / "bare", counts, width=width)
        self.upload(folder / "bare", f"{name}-bare")
        rows = build(folder / "sums", counts, width=width, checksums=True)
        self.upload(folder / "sums", name)
        return rows

    def open(self, name: str, **options: Any) -> ShardReader:
        return ShardReader.open(self.url(name), **{**self.options, **options})


@contextmanager
def bucket() -> Iterator[Bucket]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    # Keys of the machine are not for us, and nothing here is behind a proxy of its own.
    others = [n for n in os.environ if n.startswith("AWS_") or n.lower().endswith("_proxy")]
    before = {name: os.environ.pop(name) for name in others}
    server.start()
    try:
        host, port = server.get_host_and_port()
        with Proxy(host, port) as proxy:
            proxy.ask("PUT", f"/{BUCKET}", {}, b"")
            yield Bucket(proxy, host, port)
    finally:
        server.stop()
        os.environ.update(before)
