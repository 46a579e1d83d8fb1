"""Building and reading on a Ray cluster, or on the cores of this machine by way of Ray.

stepwell.ray.convert    `stepwell.convert`, piece by piece, in tasks; the same files
stepwell.ray.read       the rows of a store as a Ray Data dataset
stepwell.ray.write      a Ray Data dataset as a store

A loader in Ray Train's workers needs nothing from here: docs/frameworks/ray.md.
"""

try:
    import ray as _ray  # noqa: F401
except ImportError as error:
    raise ImportError("stepwell.ray needs an extra: pip install 'stepwell[ray]'") from error

from stepwell.ray.building import convert
from stepwell.ray.reading import StoreDatasource, read
from stepwell.ray.writing import StoreDatasink, write

__all__ = ["StoreDatasink", "StoreDatasource", "convert", "read", "write"]
