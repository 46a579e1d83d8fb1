"""Runs as they are recorded: the newest frames of lanes, on their way to browsers.

A lane that somebody looks at has one thread here, which packs the newest frame once for all
browsers that wait for one. A browser reports each frame that it has drawn, and has at most two on
the way to it: one that is slow gets fewer frames, not older ones, and the writer never notices.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse, Response
from numpy.typing import NDArray

from stepwell.errors import FormatError, StepwellError
from stepwell.replay import LaneFrame, LaneReader, lanes
from stepwell.viewer.listing import TIMEOUT_S, has_sql, safe
from stepwell.viewer.shelf import Entry, Shelf
from stepwell.viewer.tracks import Chunk, png

_ON_THE_WAY = 2
"""Frames that a browser has not drawn yet."""
_LOOKS_S = 0.25
_FASTEST_S, _CALM_S = 1 / 60, 1 / 30
"""Between two frames: of writers that are no faster than a display, and of others."""
_DISPLAY_HZ = 90.0
_REMOVED_S = 1.0
_NICE = 10
_MAX_LANES = 64
"""Threads at once; nobody looks at more."""


class Watch:
    """The newest frame of a lane, for those who look at it."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.lookers = 0
        self.end: str | None = None
        """Why there is no more: "closed", "killed", or "none" for a lane that is not there."""
        self._loop = asyncio.get_running_loop()
        self._wanted = threading.Event()
        self._serial, self._message = 0, b""
        self._waiting: list[asyncio.Future[None]] = []

    def start(self) -> None:
        """Begin to look."""
        name = f"stepwell lane {self.run_id}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def after(self, serial: int) -> tuple[int, bytes]:
        """The newest message behind one that was seen, and its number; no bytes at the end."""
        while self._serial <= serial:
            if self.end is not None:
                return serial, b""
            future = self._loop.create_future()
            self._waiting.append(future)
            self._wanted.set()
            await future
        return self._serial, self._message

    def _work(self) -> None:
        with suppress(OSError):  # the writer comes first, where there are few cores
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        end = "none"
        try:
            with LaneReader(self.run_id) as lane:
                end = self._follow(lane)
        except (FileNotFoundError, ValueError, FormatError):
            pass
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._offer, b"", end)

    def _follow(self, lane: LaneReader) -> str:
        again = 0.0
        while self.lookers:
            if not self._wanted.wait(_LOOKS_S):
                continue
            time.sleep(max(0.0, again - time.monotonic()))
            if not lane.wait(_LOOKS_S):
                if lane.closed and not lane.wait(0):
                    return "closed" if self._is_removed() else "killed"
                continue
            frame = lane.latest()
            if frame is None:
                continue
            begin = time.monotonic()
            again = begin + (_CALM_S if frame.step_rate_hz > _DISPLAY_HZ else _FASTEST_S)
            self._wanted.clear()
            message = message_of(frame, lane)
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._offer, message, None)
        return "closed"

    def _is_removed(self) -> bool:
        """Whether the lane is gone soon: a writer that closes one removes it right after."""
        end = time.monotonic() + _REMOVED_S
        while any(each.run_id == self.run_id for each in lanes()):
            if time.monotonic() > end:
                return False
            time.sleep(_REMOVED_S / 50)
        return True

    def _offer(self, message: bytes, end: str | None) -> None:
        self.end = end
        if end is None:
            self._serial += 1
            self._message = message
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class Watches:
    """The lanes that somebody looks at."""

    def __init__(self) -> None:
        self._known: dict[str, Watch] = {}

    @asynccontextmanager
    async def looking(self, run_id: str) -> AsyncIterator[Watch]:
        """Look at a lane, inside the block."""
        watch = self._known.get(run_id)
        if watch is None or watch.end is not None:
            if len(self._known) >= _MAX_LANES:
                raise ValueError(f"expected at most {_MAX_LANES} lanes at once")
            watch = self._known[run_id] = Watch(run_id)
            watch.lookers = 1
            watch.start()
        else:
            watch.lookers += 1
        try:
            yield watch
        finally:
            watch.lookers -= 1
            if not watch.lookers:
                watch.end = watch.end or "closed"
                if self._known.get(run_id) is watch:
                    del self._known[run_id]


def message_of(frame: LaneFrame, lane: LaneReader) -> bytes:
    """A frame as a chunk of one step, with what is known of it as JSON."""
    made = Chunk(frame.number, 1)
    about = {
        "number": frame.number,
        "restarts": lane.restarts,
        "reward": safe(frame.reward),
        "return": safe(frame.rolling_return),
        "rate": safe(frame.step_rate_hz),
        "step": _metadata(frame),
    }
    made.add_files("about", "text", [json.dumps(about).encode()])
    made.add_files("frame", "png", [png(_pixels(frame.pixels, lane.pixel_format))])
    return made.to_bytes()


def _pixels(frame: NDArray[np.uint8], pixel_format: str) -> NDArray[np.uint8]:
    if pixel_format == "GRAY":
        return frame[:, :, 0]
    if pixel_format.startswith("BGR"):
        return frame[:, :, [2, 1, 0, 3][: frame.shape[2]]]
    return frame


def _metadata(frame: LaneFrame) -> dict[str, Any]:
    """The mapping that a writer gave, if it gave one."""
    try:
        found = frame.json()
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(name): safe(value) for name, value in found.items()}


def lane_list(shelf: Shelf) -> list[dict[str, Any]]:
    """The lanes of this machine, and where their recordings are."""
    found = [{"run_id": each.run_id, "alive": each.alive} for each in lanes()]
    return [{**each, "recording": recording_of(shelf, str(each["run_id"]))} for each in found]


def recording_of(shelf: Shelf, run_id: str) -> dict[str, Any] | None:
    """The newest run or episode that is recorded under this id, in the stores that are shown."""
    for entry in shelf.entries:
        with suppress(StepwellError, OSError, ValueError):
            if "://" not in entry.path and (key := _newest(entry, run_id)) is not None:
                quoted = run_id.replace("'", "''")
                return {"store": entry.number, "run": key, "where": f"run_id = '{quoted}'"}
    return None


def _newest(entry: Entry, run_id: str) -> Any:
    store = entry.store
    runs = store.runs
    if runs is None or not has_sql(store) or not {"run_id", "number"} <= set(runs.columns):
        return None
    table = f"{store.runs_table} WHERE run_id = ? ORDER BY number DESC"
    sql = f"SELECT {store.runs_key} FROM {table} LIMIT 1"

    def find() -> Any:
        rows = store.query(sql, run_id, timeout_s=TIMEOUT_S).rows
        return safe(rows[0][0]) if rows else None

    return entry.remembered(("recording", run_id), find)


def make_router(shelf: Shelf) -> APIRouter:
    """The routes of lanes: a list, and the frames of one."""
    router = APIRouter(prefix="/data")
    watches, limiter = Watches(), CapacityLimiter(4)

    @router.get("/lanes")
    async def every() -> Response:
        return JSONResponse(await to_thread.run_sync(lane_list, shelf, limiter=limiter))

    @router.get("/recording")
    async def recording(run: str) -> Response:
        return JSONResponse(await to_thread.run_sync(recording_of, shelf, run, limiter=limiter))

    @router.websocket("/lane")
    async def lane(socket: WebSocket, run: str) -> None:
        await socket.accept()
        room = asyncio.Semaphore(_ON_THE_WAY)
        listening = asyncio.create_task(_listen(socket, room))
        try:
            async with watches.looking(run) as watch:
                sending = asyncio.create_task(_send(socket, watch, room))
                done, _ = await asyncio.wait(
                    {listening, sending}, return_when=asyncio.FIRST_COMPLETED
                )
                sending.cancel()
                if sending in done:
                    await socket.send_text(json.dumps({"end": watch.end}))
                    await socket.close()
        except (ValueError, WebSocketDisconnect, RuntimeError):
            with suppress(RuntimeError):
                await socket.close(1013)
        finally:
            listening.cancel()

    return router


async def _listen(socket: WebSocket, room: asyncio.Semaphore) -> None:
    """Each message of a browser reports a frame that it has drawn."""
    with suppress(WebSocketDisconnect):
        async for _ in socket.iter_text():
            room.release()


async def _send(socket: WebSocket, watch: Watch, room: asyncio.Semaphore) -> None:
    """Newest frames, as fast as they are drawn, until there are no more."""
    serial = 0
    while True:
        await room.acquire()
        serial, message = await watch.after(serial)
        if not message:
            return
        await socket.send_bytes(message)
