"""Batches as tensors, and sources inside torch's own loaders.

stepwell.torch.Loader            stepwell's loader, giving tensors, on a device if given
stepwell.torch.Resident          rows on a device, made by `source.to("cuda")`
stepwell.torch.DataLoader        the same as torch's own class, where a framework insists on it
stepwell.torch.MapDataset        a source for torch.utils.data.DataLoader
stepwell.torch.IterableDataset   a loader for DataLoader and StatefulDataLoader

`stepwell.torch.game2048` has the functions of `stepwell.game2048.decode` for tensors.

torch can store uint16 and uint32 and compute with neither: fields of these become int32 and int64.
uint64 stays as it is, unless `as_int64` names the field: then it is the same bits as int64.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("stepwell.torch needs an extra: pip install 'stepwell[torch]'") from error

from stepwell.torch import game2048 as game2048, waiting as waiting
from stepwell.torch.dataloader import DataLoader
from stepwell.torch.dataset import MapDataset, collate
from stepwell.torch.iterable import IterableDataset
from stepwell.torch.loader import Loader
from stepwell.torch.resident import Resident
from stepwell.torch.tensors import as_tensors

__all__ = [
    "DataLoader",
    "IterableDataset",
    "Loader",
    "MapDataset",
    "Resident",
    "as_tensors",
    "collate",
]
