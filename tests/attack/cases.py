"""Cases from seeds: a store, what is done to its files, and what is called then.

A case is also a line of text, which stays the same case when stores get other files:

    steps/killed take flip:metadata.db-wal:61816:1 remove:metadata.db-shm
"""

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.attack.targets import TARGETS, Target

HARMS = ("flip", "flip", "flip", "cut", "zero", "grow", "swap", "remove", "folder", "pipe", "link")
LINKS = ("file", "folder", "nowhere", "device")
ON_A_DISK = ("folder", "pipe", "link")
_HOLE = 1 << 16


@dataclass(frozen=True)
class Template:
    """A healthy store: what every file holds, as far as it is no hole, and how long it is."""

    files: dict[str, tuple[bytes, int]]
    folders: tuple[str, ...]

    @classmethod
    def of(cls, path: Path) -> "Template":
        found = sorted(path.rglob("*"))
        names = {each: str(each.relative_to(path)) for each in found}
        return cls(
            {names[each]: _content(each) for each in found if each.is_file()},
            tuple(names[each] for each in found if each.is_dir()),
        )

    def put(self, path: Path) -> None:
        """The store again, at a path where there is nothing."""
        path.mkdir()
        for folder in self.folders:
            (path / folder).mkdir()
        for name, (data, size) in self.files.items():
            with open(path / name, "wb") as file:
                file.write(data)
                file.truncate(size)


def _content(path: Path) -> tuple[bytes, int]:
    data = path.read_bytes()
    return data.rstrip(b"\0") if len(data) > _HOLE else data, len(data)


@dataclass(frozen=True)
class Harm:
    """What is done to one file of a store."""

    kind: str
    file: str
    where: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ":".join((self.kind, self.file, *self.where))


@dataclass(frozen=True)
class Case:
    target: str
    state: str
    call: str
    harms: tuple[Harm, ...]

    def __str__(self) -> str:
        return " ".join((f"{self.target}/{self.state}", self.call, *map(str, self.harms)))

    @classmethod
    def parse(cls, line: str) -> "Case":
        store, call, *harms = line.split()
        parts = [each.split(":") for each in harms]
        target, state = store.split("/")
        return cls(target, state, call, tuple(Harm(k, f, tuple(w)) for k, f, *w in parts))


Templates = dict[tuple[str, str], Template]


def make_templates(folder: Path) -> Templates:
    """Every store in every state."""
    made = {}
    for name, target in TARGETS.items():
        for state in target.states:
            path = folder / f"{name}-{state}"
            target.make(path, state)
            made[name, state] = Template.of(path)
            shutil.rmtree(path)
    return made


def from_seed(seed: int, templates: Templates) -> Case:
    draw = random.Random(seed)
    target = TARGETS[draw.choice(list(TARGETS))]
    state = draw.choice(target.states)
    call = draw.choice(list(target.calls))
    template = templates[target.name, state]
    harms = tuple(_harms(draw, target, template, draw.choice((1, 1, 1, 2, 3))))
    return Case(target.name, state, call, harms)


def _harms(draw: random.Random, target: Target, template: Template, count: int) -> Iterator[Harm]:
    names = draw.sample(list(template.files), min(count + 1, len(template.files)))
    for name in names[:count]:
        kind = draw.choice(HARMS)
        is_remote = bool(target.outside) and name.startswith(target.outside)
        if kind in ON_A_DISK and is_remote:
            kind = "remove"
        if kind in ON_A_DISK and "/" in name and draw.random() < 0.2:
            name = name.rpartition("/")[0]  # the folder of it
            if kind == "folder":
                kind = "remove"
            yield Harm(kind, name, ("folder",) if kind == "link" else ())
        elif kind == "link":
            yield Harm(kind, name, (draw.choice(LINKS),))
        elif kind == "swap":
            others = [
                n for n in template.files if n != name and n.startswith("bucket") == is_remote
            ]
            yield Harm(kind, name, (draw.choice(others),)) if others else Harm("remove", name)
        elif kind in ("flip", "zero", "cut"):
            data, size = template.files[name]
            if not size:
                yield Harm("grow", name, (str(draw.randint(1, 5000)),))
            elif kind == "flip":
                yield Harm(kind, name, (str(_place(draw, data, size)), str(1 << draw.randrange(8))))
            elif kind == "zero":
                length = draw.choice((1, 4, 8, 100, 4096))
                yield Harm(kind, name, (str(_place(draw, data, size)), str(length)))
            else:
                yield Harm(kind, name, (str(min(_place(draw, data, size), size - 1)),))
        elif kind == "grow":
            yield Harm(
                kind, name, (str(draw.choice((1, 64, 4096, 1 << (12 if is_remote else 33)))),)
            )
        else:
            yield Harm(kind, name)


def _place(draw: random.Random, data: bytes, size: int) -> int:
    """Anywhere; or near the ends, where much of what is believed stands; or where it is not 0."""
    way = draw.random()
    if way < 0.3 or not data:
        return draw.randrange(size)
    if way < 0.55:
        return draw.randrange(min(len(data), 256))
    if way < 0.7:
        return len(data) - 1 - draw.randrange(min(len(data), 256))
    for _ in range(20):
        place = draw.randrange(len(data))
        if data[place]:
            break
    return place


def undo_flips(harms: tuple[Harm, ...], root: Path, template: Template) -> bool:
    """Undo harm that was nothing but flips, where nobody wrote meanwhile; else return False.

    Raises `FileNotFoundError` for a file that is gone.
    """
    if any(harm.kind != "flip" for harm in harms):
        return False
    harms = tuple(harm for harm in harms if not harm.file.endswith("-shm"))  # holds nothing
    for harm in harms:
        place, bits = map(int, harm.where)
        with open(root / harm.file, "rb") as file:
            file.seek(place)
            data, _ = template.files[harm.file]
            before = data[place] if place < len(data) else 0
            if file.read(1) != bytes([before ^ bits]):
                return False
    for harm in harms:
        _change(root / harm.file, harm)
    return True


def do_harm(harm: Harm, target: Target, root: Path, outside: Path) -> None:
    """Do it; what a link leads to is made in a folder outside."""
    path = target.file(root, harm.file)
    if not os.path.lexists(path):
        return  # an earlier one took it away
    if harm.kind in ("flip", "zero", "cut", "grow"):
        if path.is_file() and not path.is_symlink():
            _change(path, harm)
    elif harm.kind == "swap":
        other, between = target.file(root, harm.where[0]), root / ".between"
        if other.exists():
            path.rename(between)
            other.rename(path)
            between.rename(other)
    elif harm.kind == "link":
        _link(path, harm.where[0], outside)
    else:
        _remove(path)
        if harm.kind == "pipe":
            os.mkfifo(path)
        elif harm.kind == "folder":
            path.mkdir()
            (path / "something").write_bytes(b"else")


def _change(path: Path, harm: Harm) -> None:
    place, size = int(harm.where[0]), path.stat().st_size
    with open(path, "r+b") as file:
        if harm.kind == "cut":
            file.truncate(min(place, size))
        elif harm.kind == "grow":
            file.truncate(size + place)
            file.seek(size)
            file.write(b"\xa5" * min(place, 64))
        elif harm.kind == "zero":
            file.seek(place)
            file.write(bytes(max(min(int(harm.where[1]), size - place), 0)))
        elif place < size:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ int(harm.where[1])]))


def _link(path: Path, to: str, outside: Path) -> None:
    """The same content stands outside: whoever follows the link finds nothing odd about it."""
    number = len(list(outside.iterdir()))
    victim = outside / f"{number}-{path.name}"
    if to == "device":
        _remove(path)
        path.symlink_to("/dev/zero")
        return
    if to == "folder" and path.is_file():
        _remove(path)
        victim.mkdir()
        (victim / "something").write_bytes(b"of value")
    elif to == "nowhere":
        _remove(path)
    else:
        path.rename(victim)
    path.symlink_to(victim)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
