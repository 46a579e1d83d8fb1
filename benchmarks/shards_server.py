"""As much of S3 as reading takes: the files of a folder as objects, each answer a while later.

A bucket has one folder, of which lists are given, and no others inside of it.

python -m benchmarks.shards_server <port> <folder> <milliseconds> [<bytes a second> [<spread>]]

All answers share the bytes a second in equal parts. With a spread, the milliseconds are the median
of a log-normal distribution. A GET of /counted answers with the requests for objects and the bytes
that were asked for so far.

moto's server would do, but works at one request at a time, 4 to 6 ms each: it would be measured.
"""

import asyncio
import math
import random
import re
import sys
from email.utils import formatdate
from pathlib import Path

_PIECE_BYTES = 1 << 15
_SLEEP_S = 0.001  # shorter ones are not worth their overrun


class _Link:
    """Pieces of all answers, one after another at the pace of the link."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s, self._free_at = bytes_s, 0.0

    async def passed(self, size: int) -> None:
        clock = asyncio.get_running_loop().time
        self._free_at = max(self._free_at, clock()) + size / self._bytes_s
        if (left := self._free_at - clock()) > _SLEEP_S:
            await asyncio.sleep(left)


class _Bucket:
    def __init__(self, folder: Path, delay_s: float, bytes_s: float, spread: float) -> None:
        self._folder, self._delay_s, self._spread = folder, delay_s, spread
        self._link = _Link(bytes_s) if math.isfinite(bytes_s) else None
        self._random = random.Random(0)
        self._requests = self._bytes = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET /counted "):
                    _reply(writer, "200 OK", f"{self._requests} {self._bytes}".encode())
                    continue
                await self._answer(head.decode(), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        self._requests += 1
        drawn = self._random.lognormvariate(0, self._spread) if self._spread else 1.0
        late = asyncio.sleep(self._delay_s * drawn)
        name, _, asked_for = head.split()[1].partition("?")
        path = self._folder / name.rpartition("/")[2]
        if "list-type=2" in asked_for:
            await late
            _reply(writer, "200 OK", self._list().encode())
            return
        if not path.is_file():
            await late
            _reply(writer, "404 Not Found", b"")
            return
        stat = path.stat()
        begin, end, status = 0, stat.st_size, "200 OK"
        if asked := re.search(r"^range: bytes=(\d+)-(\d+)\r$", head, re.MULTILINE | re.IGNORECASE):
            begin, end, status = int(asked[1]), min(int(asked[2]) + 1, end), "206 Partial Content"
        if is_head := head.startswith("HEAD "):
            end, status = stat.st_size, "200 OK"
        else:
            self._bytes += end - begin
        await late
        lines = [
            f"HTTP/1.1 {status}",
            f"Content-Length: {end - begin}",
            f"Content-Range: bytes {begin}-{end - 1}/{stat.st_size}",
            f"Last-Modified: {formatdate(stat.st_mtime, usegmt=True)}",
            f'ETag: "{stat.st_mtime_ns:x}"',
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        if is_head:
            return
        send = asyncio.get_running_loop().sendfile
        with path.open("rb") as file:
            if self._link is None:
                await send(writer.transport, file, begin, end - begin)
                return
            for at in range(begin, end, _PIECE_BYTES):
                size = min(_PIECE_BYTES, end - at)
                await self._link.passed(size)
                await send(writer.transport, file, at, size)

    def _list(self) -> str:
        """All objects; whoever asks has the whole bucket."""
        each = "".join(
            f"<Contents><Key>{path.name}</Key><Size>{path.stat().st_size}</Size>"
            f'<ETag>"{path.stat().st_mtime_ns:x}"</ETag>'
            "<LastModified>2000-01-01T00:00:00.000Z</LastModified></Contents>"
            for path in self._folder.iterdir()
            if path.is_file()
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{each}</ListBucketResult>"


def _reply(writer: asyncio.StreamWriter, status: str, body: bytes) -> None:
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


async def serve(
    port: int, folder: Path, delay_s: float, bytes_s: float = math.inf, spread: float = 0.0
) -> None:
    bucket = _Bucket(folder, delay_s, bytes_s, spread)
    server = await asyncio.start_server(bucket.connected, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    port, folder, milliseconds, *link = sys.argv[1:]
    asyncio.run(serve(int(port), Path(folder), float(milliseconds) / 1e3, *map(float, link)))
