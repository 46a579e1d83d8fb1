"""Runs as they are recorded."""

from fastapi import Request

from stepwell.viewer.pages import frame
from stepwell.viewer.player import LiveView
from stepwell.viewer.shelf import Shelf


def register(shelf: Shelf) -> None:
    @frame.at("/live")
    def live(request: Request) -> None:
        with frame.page("Live") as main:
            main.classes(replace="sp-page sp-scrolls")
            LiveView(request.query_params.getlist("run"))
