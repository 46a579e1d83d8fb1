"""A server in front of another: every request arrives a while later.

python -m benchmarks.shards_proxy <its port> <port of the other> <milliseconds>
"""

import asyncio
import sys
from contextlib import suppress

_PIECE = 1 << 20


async def _pass_on(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, delay_s: float
) -> None:
    with suppress(ConnectionError):
        while data := await source.read(_PIECE):
            if delay_s:
                await asyncio.sleep(delay_s)
            target.write(data)
            await target.drain()
    target.close()


async def serve(port: int, behind: int, delay_s: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", behind, limit=_PIECE)
        await asyncio.gather(_pass_on(reader, forth, delay_s), _pass_on(back, writer, 0))

    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=_PIECE)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1e3))
