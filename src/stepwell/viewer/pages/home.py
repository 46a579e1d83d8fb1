"""All stores, a card each."""

import asyncio

from nicegui import html, ui

from stepwell.description import Description
from stepwell.viewer.pages import frame
from stepwell.viewer.shelf import Entry, Shelf


def register(shelf: Shelf) -> None:
    @frame.at("/")
    async def home() -> None:
        entries = list(shelf.entries)
        with frame.page("Stores"):
            html.h1("1 store" if len(entries) == 1 else f"{len(entries):,} stores")
            if not entries:
                frame.problem("there is nothing to show", "Open the viewer with a path of a store.")
            with ui.element("div").classes("sw-cards"):
                places = [_card(entry) for entry in entries]
        await asyncio.gather(
            *(_fill(entry, place) for entry, place in zip(entries, places, strict=True))
        )


def _card(entry: Entry) -> ui.element:
    """A card, and in it the place of what is known once the store was opened."""
    with ui.link(target=f"/s/{entry.number}").classes("sw-panel sw-card"):
        html.h2(entry.name).classes("sw-cut")
        place: ui.element = html.div().style("display: contents")
        with place:
            ui.label(entry.path).classes("sw-mono sw-dim sw-cut")
            with html.div().classes("sw-numbers"):
                for _ in range(3):
                    ui.skeleton("text", width="60%")
            ui.skeleton("text", width="40%").style("margin-top: auto")
    return place


async def _fill(entry: Entry, place: ui.element) -> None:
    def show(about: Description) -> None:
        with html.div().classes("sw-row").style("flex-wrap: nowrap"):
            ui.label(frame.kind_of(about)).classes("sw-kind")
            ui.label(entry.path).classes("sw-mono sw-dim sw-cut").tooltip(entry.path)
        with html.div().classes("sw-numbers"):
            frame.amounts(entry, about)
        frame.health(about.health, entry.problem)

    def broken(error: BaseException) -> None:
        ui.label(entry.path).classes("sw-mono sw-dim sw-cut")
        ui.label(frame.sentence(error)).classes("sw-dot sw-bad")

    await frame.fill(entry, place, entry.about, show, broken)
