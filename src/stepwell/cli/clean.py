"""`stepwell clean`: what killed writers have left in a bucket."""

import re
from datetime import timedelta
from typing import Annotated, Any

import typer

from stepwell.cleaning import clean as clean_up
from stepwell.cli.console import JsonOption, out, print_json, say, show_rows
from stepwell.cli.stores import EndpointOption

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def clean(
    url: Annotated[str, typer.Argument(metavar="URL", help="A store that was written there.")],
    older_than: Annotated[
        str, typer.Option(help="The least age of what is removed: 90s, 30m, 12h, 2d.")
    ] = "1d",
    delete: Annotated[bool, typer.Option("--delete", help="Remove what is listed.")] = False,
    endpoint: EndpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """What killed writers have left in a bucket: in no commit, and of no writer that is open.

    Lists it; --delete removes it. Ages are by the clock of the server.
    """
    if "://" not in url:
        raise typer.BadParameter(f"expected a URL, got {url!r}: writers of a path clean up")
    options: dict[str, Any] = {} if endpoint is None else {"endpoint": endpoint}
    found = clean_up(url, older_than=_age(older_than), delete=delete, **options)
    if as_json:
        listed = [
            {"name": name, "bytes": size, "age_s": age.total_seconds()}
            for name, (size, age) in sorted(found.items())
        ]
        print_json({"url": url, "deleted": delete, "objects": listed})
        return
    rows = [(name, size, _short(age)) for name, (size, age) in sorted(found.items())]
    if rows:
        show_rows(("object", "bytes", "age"), rows, numbers=(1, 2))
    count, total = len(found), sum(size for size, _ in found.values())
    if not out.is_terminal:
        objects, size_text = f"{count} object" + "s" * (count != 1), f"{total} bytes"
    else:
        objects, size_text = f"{count:,} object" + "s" * (count != 1), f"{total:,} bytes"
    if not count:
        say("nothing to clean up")
    elif delete:
        say(f"removed {objects} of {size_text}")
    else:
        say(f"{objects} of {size_text} can be removed: --delete does it")


def _age(text: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None:
        raise typer.BadParameter(f"--older-than: expected an age like 30m, 12h or 2d, got {text!r}")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _short(age: timedelta) -> str:
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        if age.total_seconds() >= seconds:
            return f"{age.total_seconds() / seconds:.1f}{unit}"
    return f"{age.total_seconds():.0f}s"
