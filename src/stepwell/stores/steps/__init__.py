"""Step datasets: a billion steps, any of them at memory speed (docs/formats/steps.md)."""

from stepwell.stores.steps.database import RunColumn
from stepwell.stores.steps.reader import StepReader
from stepwell.stores.steps.writer import StepWriter

__all__ = ["RunColumn", "StepReader", "StepWriter"]
