"""Data for the pages, by plain routes: read-only, keys instead of paths, errors as sentences."""

import ctypes
from collections.abc import Callable
from itertools import count as counted
from typing import Any, TypeVar

import anyio
from anyio import CapacityLimiter
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from stepwell.errors import StepwellError
from stepwell.viewer.cells import MAX_ROWS, loader_rows, table
from stepwell.viewer.episodes import open_episode
from stepwell.viewer.listing import list_runs, safe
from stepwell.viewer.neighbours import neighbours
from stepwell.viewer.shelf import Shelf

T = TypeVar("T")

_READERS = 16
_QUERIES = 4  # at once, so that conditions without an end leave threads to everyone else
_MAX_PARAMETER = 10_000
_TRIM_EVERY = 16
"""Chunks after which the C library gives back what it keeps. Each takes some ten megabytes on the
way, each thread has a heap of its own, and their holes add up while people click."""

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's


class Mistake(Exception):
    """A request that cannot be answered, in a sentence."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


def make_router(shelf: Shelf) -> APIRouter:
    """The routes below `/data`, over these stores."""
    router = APIRouter(prefix="/data")
    readers, queries = CapacityLimiter(_READERS), CapacityLimiter(_QUERIES)
    chunks = counted(1)

    async def answer(work: Callable[[], Any], limiter: CapacityLimiter) -> Response:
        try:
            made = await anyio.to_thread.run_sync(work, limiter=limiter)
        except Mistake as error:
            return _error(str(error), error.status)
        except KeyError as error:
            return _error(str(error.args[0] if error.args else error), 404)
        except TimeoutError as error:
            return _error(str(error), 408)
        except StepwellError as error:
            return _error(str(error), 422)
        except FileNotFoundError as error:
            return _error(str(error), 404)
        except OSError as error:
            return _error(str(error), 422)
        except (ValueError, IndexError, OverflowError) as error:
            return _error(str(error), 400)
        given: Response = made if isinstance(made, Response) else JSONResponse(made)
        given.headers.setdefault("cache-control", "no-store")
        return given

    @router.get("/{number}/about")
    async def about(number: int) -> Response:
        def work() -> Any:
            entry = shelf[number]
            store, found = entry.store, entry.about()
            known = {"name": entry.name, "noun": store.noun, "problem": entry.problem}
            return _plain({**found.to_json(), **known, "version": entry.version})

        return await answer(work, readers)

    @router.get("/{number}/runs")
    async def runs(number: int, request: Request) -> Response:
        given = request.query_params

        def work() -> Any:
            return list_runs(
                shelf[number],
                where=_text(given.get("where", "")),
                sort=given.get("sort", ""),
                descending=given.get("desc", "") in ("1", "true"),
                offset=_whole("offset", given.get("offset", "0")),
                limit=_whole("limit", given.get("limit", "100")),
            )

        return await answer(work, queries)

    @router.get("/{number}/near")
    async def near(number: int, request: Request) -> Response:
        given = request.query_params

        def work() -> Any:
            return neighbours(
                shelf[number],
                _text(given.get("key", "")),
                where=_text(given.get("where", "")),
                sort=given.get("sort", ""),
                descending=given.get("desc", "") in ("1", "true"),
            )

        return await answer(work, queries)

    @router.get("/{number}/run")
    async def run(number: int, request: Request) -> Response:
        key = request.query_params.get("key", "")

        def work() -> Any:
            try:
                return open_episode(shelf[number], _text(key)).about()
            except (StepwellError, OSError) as error:
                return {**_NOTHING, "key": key, "title": key, "damage": str(error)}

        return await answer(work, readers)

    @router.get("/{number}/chunk")
    async def chunk(number: int, request: Request) -> Response:
        given = request.query_params

        def work() -> Any:
            episode = open_episode(shelf[number], _text(given.get("key", "")))
            start, count = (
                _whole(name, given.get(name, default))
                for name, default in (("start", "0"), ("count", str(episode.chunk_steps)))
            )
            made = episode.chunk(start, count)
            if next(chunks) % _TRIM_EVERY == 0 and _trim is not None:
                _trim(0)
            return Response(made, media_type="application/octet-stream")

        return await answer(work, readers)

    @router.get("/{number}/thumb")
    async def thumb(number: int, request: Request) -> Response:
        key = request.query_params.get("key", "")

        def work() -> Any:
            found = open_episode(shelf[number], _text(key)).thumbnail()
            if found is None:
                raise KeyError(f"run {key!r} has nothing to draw")
            headers = {"cache-control": "private, max-age=60"}
            return Response(found, media_type="image/png", headers=headers)

        return await answer(work, readers)

    @router.get("/{number}/rows")
    async def rows(number: int, request: Request) -> Response:
        given = request.query_params

        def work() -> Any:
            entry = shelf[number]
            if "seed" in given:
                seed, step = (_whole(name, given.get(name, "0")) for name in ("seed", "step"))
                batch = max(1, min(_whole("batch", given.get("batch", "16")), MAX_ROWS))
                return table(entry.store, *loader_rows(entry.store, seed, step, batch))
            if "rows" in given:
                numbers = _text(given["rows"]).split(",")
                return table(entry.store, [_whole("rows", each.strip()) for each in numbers])
            start, count = (
                _whole(name, given.get(name, default))
                for name, default in (("start", "0"), ("count", "20"))
            )
            every = range(len(entry.store))
            return table(entry.store, every[start : start + min(count, MAX_ROWS)])

        return await answer(work, readers)

    return router


_NOTHING: dict[str, Any] = {
    "steps": 0, "columns": {}, "tracks": [], "curve": {}, "actions": None, "chunk": 1, "live": False
}  # fmt: skip


def _error(sentence: str, status: int) -> Response:
    return JSONResponse({"error": sentence}, status)


def _text(given: str) -> str:
    if len(given) > _MAX_PARAMETER:
        raise Mistake(f"expected at most {_MAX_PARAMETER:,} letters, got {len(given):,}")
    return given


def _whole(name: str, given: str) -> int:
    if not given.isdecimal() or len(given) > 18:
        raise Mistake(f"{name}: expected a whole number, got {given[:40]!r}")
    return int(given)


def _plain(value: Any) -> Any:
    """Facts of any kind as JSON holds them."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return safe(value)
