"""The memory that is free, which stores compare their rows with before they load them."""

import re
from pathlib import Path

_SMALL = 1 << 26  # less is not looked at: it is soon loaded, and looking costs some files
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_V2 = ("memory.max", "memory.current", "")


def check_room(size: int, path: object) -> None:
    """Raise `MemoryError` when fewer than `size` bytes of memory are free for the rows at a path.

    The system would end this process in the middle, or some other.
    """
    free = free_bytes() if size > _SMALL else None
    if free is not None and size > free:
        raise MemoryError(
            f"expected rows of at most {free:,} bytes, the memory that is free, got {size:,}; "
            f"memory='map' leaves them on the disk - at {path}"
        )


def free_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take, by the machine and the control groups it is in.

    Pages of files count as free: the system gives them up. None where nothing shows it.
    """
    found = re.findall(r"(?m)^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"))
    free = [int(each) * 1024 for each in found]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        names, mount = (_V1, "sys/fs/cgroup/memory") if controllers else (_V2, "sys/fs/cgroup")
        # In a container the group may be one that only the host sees; its limits are at the mount.
        inside = Path(group.lstrip("/"))
        for folder in (inside, *inside.parents):
            free += _rest(root / mount / folder, *names)
    return min(free, default=None)


def _rest(group: Path, limit: str, usage: str, prefix: str) -> list[int]:
    """Bytes that a control group may still take; nothing where it has no limit."""
    try:
        rest = int(_text(group / limit)) - int(_text(group / usage))
    except ValueError:  # "max", or no such file
        return []
    files = re.findall(rf"(?m)^{prefix}(?:in)?active_file (\d+)$", _text(group / "memory.stat"))
    return [max(rest + sum(map(int, files)), 0)]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
