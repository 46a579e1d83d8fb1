"""As much of S3 as reading takes: the files of a folder as objects, each answer a while later.

python -m benchmarks.shards_server <port> <folder> <milliseconds>

moto's server would do, but works at one request at a time, 4 to 6 ms each: it would be measured.
"""

import asyncio
import re
import sys
from email.utils import formatdate
from pathlib import Path


async def serve(port: int, folder: Path, delay_s: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await asyncio.sleep(delay_s)
                await _answer(head.decode(), folder, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


async def _answer(head: str, folder: Path, writer: asyncio.StreamWriter) -> None:
    path = folder / head.split()[1].partition("?")[0].rpartition("/")[2]
    if not path.is_file():
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        return
    stat = path.stat()
    begin, end, status = 0, stat.st_size, "200 OK"
    if asked := re.search(r"^range: bytes=(\d+)-(\d+)\r$", head, re.MULTILINE | re.IGNORECASE):
        begin, end, status = int(asked[1]), min(int(asked[2]) + 1, end), "206 Partial Content"
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {end - begin}",
        f"Content-Range: bytes {begin}-{end - 1}/{stat.st_size}",
        f"Last-Modified: {formatdate(stat.st_mtime, usegmt=True)}",
        f'ETag: "{stat.st_mtime_ns:x}"',
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    with path.open("rb") as file:
        await asyncio.get_running_loop().sendfile(writer.transport, file, begin, end - begin)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]) / 1e3))
