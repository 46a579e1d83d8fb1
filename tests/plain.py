"""The smallest store there can be, as CONTRIBUTING tells a newcomer to write one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import Batch, Field, Ragged, Source
from stepwell.source import Rows, Schema

Values = NDArray[Any] | list[NDArray[Any]]


class PlainSource(Source):
    """Arrays read by Python; a list of arrays is a ragged field."""

    def __init__(self, values: Mapping[str, Values]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(next(iter(self._values.values())))

    @property
    def schema(self) -> Schema:
        return {name: _field(values) for name, values in self._values.items()}

    def _fill(self, rows: Rows, out: Batch) -> None:
        for name, values in self._values.items():
            if isinstance(values, list):
                out[name] = Ragged.from_list([values[row] for row in rows], self.schema[name])
            else:
                np.take(values, rows, axis=0, out=out[name])


def _field(values: Values) -> Field:
    if isinstance(values, list):
        return Field(values[0].dtype, values[0].shape[1:], ragged=True)
    return Field(values.dtype, values.shape[1:])
