"""Data for the pages, by plain routes: read-only, keys instead of paths, errors as sentences."""

import ctypes
from collections.abc import Callable
from itertools import count as counted
from typing import Any, TypeVar

import anyio
from fastapi import APIRouter, Request
from fastapi.datastructures import QueryParams
from fastapi.responses import JSONResponse, Response

from stepwell.errors import StepwellError
from stepwell.viewer.cells import MAX_ROWS, loader_rows, table
from stepwell.viewer.episodes import open_episode
from stepwell.viewer.listing import list_runs, safe
from stepwell.viewer.neighbours import neighbours
from stepwell.viewer.shelf import Entry, Shelf

T = TypeVar("T")

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
    chunks = counted(1)

    async def answer(number: int, work: Callable[[Entry], Any], *, slow: bool = False) -> Response:
        try:
            entry = shelf[number]
            limiter = entry.slow_threads if slow else entry.threads
            made = await anyio.to_thread.run_sync(work, entry, limiter=limiter)
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
        def work(entry: Entry) -> Any:
            store, found = entry.store, entry.about()
            known = {"name": entry.name, "noun": store.noun, "problem": entry.problem}
            return _plain({**found.to_json(), **known, "version": entry.version})

        return await answer(number, work)

    @router.get("/{number}/runs")
    async def runs(number: int, request: Request) -> Response:
        given = request.query_params

        def work(entry: Entry) -> Any:
            offset, limit = _whole(given, "offset", 0), _whole(given, "limit", 100)
            return list_runs(entry, offset=offset, limit=limit, **_list(given))

        return await answer(number, work, slow=True)

    @router.get("/{number}/near")
    async def near(number: int, request: Request) -> Response:
        given = request.query_params
        work = lambda entry: neighbours(entry, _text(given, "key"), **_list(given))  # noqa: E731
        return await answer(number, work, slow=True)

    @router.get("/{number}/run")
    async def run(number: int, request: Request) -> Response:
        key = request.query_params.get("key", "")

        def work(entry: Entry) -> Any:
            try:
                return open_episode(entry, _text(request.query_params, "key")).about()
            except (StepwellError, OSError) as error:
                return {**_NOTHING, "key": key, "title": key, "damage": str(error)}

        return await answer(number, work)

    @router.get("/{number}/chunk")
    async def chunk(number: int, request: Request) -> Response:
        given = request.query_params

        def work(entry: Entry) -> Any:
            episode = open_episode(entry, _text(given, "key"))
            start, count = _whole(given, "start", 0), _whole(given, "count", episode.chunk_steps)
            made = episode.chunk(start, count)
            if next(chunks) % _TRIM_EVERY == 0 and _trim is not None:
                _trim(0)
            return Response(made, media_type="application/octet-stream")

        return await answer(number, work)

    @router.get("/{number}/thumb")
    async def thumb(number: int, request: Request) -> Response:
        def work(entry: Entry) -> Any:
            key = _text(request.query_params, "key")
            found = open_episode(entry, key).thumbnail()
            if found is None:
                raise KeyError(f"run {key!r} has nothing to draw")
            headers = {"cache-control": "private, max-age=60"}
            return Response(found, media_type="image/png", headers=headers)

        return await answer(number, work)

    @router.get("/{number}/rows")
    async def rows(number: int, request: Request) -> Response:
        given = request.query_params

        def work(entry: Entry) -> Any:
            store = entry.store
            if "seed" in given:
                seed, step = _whole(given, "seed", 0), _whole(given, "step", 0)
                batch = max(1, min(_whole(given, "batch", 16), MAX_ROWS))
                return table(store, *loader_rows(store, seed, step, batch))
            if "rows" in given:
                numbers = _text(given, "rows").split(",")
                return table(store, [_number("rows", each.strip()) for each in numbers])
            start, count = _whole(given, "start", 0), _whole(given, "count", 20)
            return table(store, range(len(store))[start : start + min(count, MAX_ROWS)])

        return await answer(number, work)

    return router


_NOTHING: dict[str, Any] = {
    "steps": 0, "columns": {}, "tracks": [], "curve": {}, "actions": None, "chunk": 1, "live": False
}  # fmt: skip


def _error(sentence: str, status: int) -> Response:
    return JSONResponse({"error": sentence}, status)


def _text(given: QueryParams, name: str) -> str:
    text = given.get(name, "")
    if len(text) > _MAX_PARAMETER:
        raise Mistake(f"expected at most {_MAX_PARAMETER:,} letters, got {len(text):,}")
    return text


def _whole(given: QueryParams, name: str, otherwise: int) -> int:
    return _number(name, given[name]) if name in given else otherwise


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise Mistake(f"{name}: expected a whole number, got {text[:40]!r}")
    return int(text)


def _list(given: QueryParams) -> dict[str, Any]:
    """Which list of runs is meant: the filter, and the order."""
    sort, descending = given.get("sort", ""), given.get("desc", "") in ("1", "true")
    return {"where": _text(given, "where"), "sort": sort, "descending": descending}


def _plain(value: Any) -> Any:
    """Facts of any kind as JSON holds them."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return safe(value)
