"""The pages of the viewer."""

from stepwell.viewer.pages import check, frame, home, live, overview, play, rows, runs
from stepwell.viewer.shelf import Shelf

_registered = False


def register(shelf: Shelf) -> None:
    """Have NiceGUI show them."""
    global _registered
    if _registered:
        return
    _registered = True
    for each in (frame, home, overview, runs, rows, check, play, live):
        each.register(shelf)
