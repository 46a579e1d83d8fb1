"""The player: one episode, or two side by side."""

from fastapi import Request

from stepwell.viewer.listing import list_runs
from stepwell.viewer.pages import frame
from stepwell.viewer.player import PlayerView
from stepwell.viewer.shelf import Entry, Shelf


def register(shelf: Shelf) -> None:
    @frame.at("/s/{number}/play")
    async def play(number: int, request: Request) -> None:
        entry = frame.entry_at(shelf, number)
        if entry is None:
            return
        given = request.query_params
        where, sort = given.get("where", ""), given.get("sort", "")
        descending = given.get("desc", "") in ("1", "true")
        wanted = given.get("run", "")

        def find() -> str:
            entry.store  # noqa: B018  one that does not answer is waited for here
            return wanted or _first(entry, where, sort, descending)

        def show(key: str) -> None:
            main.classes(replace="sp-page")
            PlayerView(
                number,
                key,
                name=entry.name,
                step=frame.query_number(request, "step", 0),
                beside=given.get("beside", ""),
                where=where,
                sort=sort,
                descending=descending,
            )

        with frame.page(wanted or "Player", entry, "runs") as main:
            await frame.fill(entry, main, find, show)


def _first(entry: Entry, where: str, sort: str, descending: bool) -> str:
    """The run that a list begins with."""
    found = list_runs(entry, where=where, sort=sort, descending=descending, limit=1)
    if not found["rows"]:
        raise KeyError("there is no run to play")
    return str(found["rows"][0][found["columns"].index(found["key"])])
