"""Building and reading on a Ray cluster, or on the cores of this machine by way of Ray.

stepwell.ray.convert    `stepwell.convert`, piece by piece, in tasks; the same files
stepwell.ray.read       the rows of a store as a Ray Data dataset
stepwell.ray.write      a Ray Data dataset as a store

A loader in Ray Train's workers needs nothing from here: docs/frameworks/ray.md.
"""

from typing import TYPE_CHECKING, Any

try:
    import ray as _ray  # noqa: F401
except ImportError as error:
    raise ImportError("stepwell.ray needs an extra: pip install 'stepwell[ray]'") from error

from stepwell.ray.building import convert

if TYPE_CHECKING:
    from stepwell.ray.reading import read
    from stepwell.ray.writing import write

__all__ = ["convert", "read", "write"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Ray Data takes seconds to import, which workers that build have no use for.
        if name == "read":
            from stepwell.ray.reading import read as found
        elif name == "write":
            from stepwell.ray.writing import write as found
        else:
            raise AttributeError(f"module 'stepwell.ray' has no attribute {name!r}")
        globals()[name] = found
        return found
