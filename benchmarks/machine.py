"""What the numbers were measured on."""

import os
import platform
import re
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stepwell import _core

_PACKAGES = (
    *("stepwell", "numpy", "torch", "tensordict", "grain", "array_record"),
    *("lmdb", "orjson", "msgspec", "zstandard", "lz4"),
    *("loaderx", "bagz", "pylance", "h5py", "hdf5plugin", "zarr", "safetensors"),
)


def describe() -> dict[str, str]:
    """Processor, memory, pages and versions, each under its name."""
    model = re.search(r"^model name\s*: (.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+)", _read("/proc/meminfo"), re.MULTILINE)
    huge = re.search(r"\[(\w+)\]", _read("/sys/kernel/mm/transparent_hugepage/enabled"))
    return {
        "processor": f"{model[1] if model else platform.machine()}, "
        f"{_core.usable_cores()} usable cores",
        "memory": f"{int(memory[1]) / 2**20:.0f} GiB" if memory else "unknown",
        "transparent huge pages": huge[1] if huge else "unknown",
        "system": f"{platform.system()} {platform.release()}",
        "versions": f"Python {platform.python_version()}, " + ", ".join(_versions()),
    }


class Quiet:
    """Watches, from its making on, how much of the machine other programs use."""

    def __init__(self) -> None:
        self._begin = _busy_s()
        self._begin_wall = time.monotonic()

    def others(self) -> float:
        """Their share of the cores so far, from 0 to 1: above a tenth, doubt the numbers."""
        wall = (time.monotonic() - self._begin_wall) * (os.cpu_count() or 1)
        return max(0.0, _busy_s() - self._begin) / wall


def _busy_s() -> float:
    """Seconds all processors were busy for anybody but this process and its children."""
    user, nice, system, _, _, irq, softirq, steal = map(int, _read("/proc/stat").split()[1:9])
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def _versions() -> list[str]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


def _read(path: str) -> str:
    file = Path(path)
    return file.read_text() if file.exists() else ""
