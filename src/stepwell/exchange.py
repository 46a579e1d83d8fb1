"""`stepwell.as_source`: what people hold, as a source."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepwell.source import Source
from stepwell.stores import ArraySource
from stepwell.views import Join
from stepwell.writer import Writer


def as_source(source: Source | Mapping[str, Any] | Any) -> Source:
    """A source of what the user gave: arrays are wrapped, named sources joined."""
    if isinstance(source, Source):
        return source
    if isinstance(source, Mapping):
        return Join({name: as_source(part) for name, part in source.items()})
    if isinstance(source, np.ndarray):
        return ArraySource(source)
    if isinstance(source, Writer):
        reader = type(source).__name__.replace("Writer", "Reader")
        raise TypeError(
            f"expected a source, got a {type(source).__name__}; {reader}.open gives one"
        )
    raise TypeError(
        f"expected a source, an array or a mapping of those, got {type(source)}; "
        "stepwell.open opens paths, ArraySource wraps what NumPy makes an array of"
    )
