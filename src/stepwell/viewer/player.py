"""The player and the live view as elements of NiceGUI's pages."""

from collections.abc import Sequence
from pathlib import Path

from nicegui import ui

STATIC = Path(__file__).parent / "static"


class PlayerView(
    ui.element, component="static/player_view.js", esm={"stepwell": "static"}
):  # the second makes modules of the folder importable as stepwell/player.js
    """Plays an episode, or two side by side. It keeps the address of the page up to date."""

    def __init__(
        self,
        store: int,
        run: str,
        *,
        name: str = "",
        step: int = 0,
        beside: str = "",
        where: str = "",
        sort: str = "",
        descending: bool = False,
    ) -> None:
        super().__init__()
        ui.add_css(STATIC / "player.css")
        self._props.update(
            store=store,
            name=name,
            run=run,
            step=step,
            beside=beside,
            where=where,
            sort=sort,
            desc=descending,
        )


class LiveView(ui.element, component="static/live_view.js"):
    """The newest frames of runs; of all on this machine where none is named."""

    def __init__(self, runs: Sequence[str] = ()) -> None:
        super().__init__()
        ui.add_css(STATIC / "player.css")
        self._props["runs"] = list(runs)
