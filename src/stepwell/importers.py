"""Step datasets of what others have recorded.

from_arrays(out, {"obs": obs, "action": actions}, ends=done)    arrays, equally long
import_npz("hopper.npz", out)                                    dictionaries in the style of D4RL
import_hdf5("hopper.hdf5", out)                                  the same in HDF5
import_minari("cartpole/expert-v0", out)                         a Minari dataset

All give back a `StepReader`, mapped: `StepReader.open(out)` reads it into memory. `out` must
not exist, and appears when it is complete. Rows are read slice by slice, so that memory is a few
slices, or the longest run if that is more. Numbers stay what they were: float64 stays
float64; only their byte order becomes this machine's.
"""

import math
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell.errors import FormatError, SchemaError
from stepwell.stores.steps import RunColumn, StepReader
from stepwell.stores.steps.publish import StepRun, publish_runs

if TYPE_CHECKING:
    import minari

__all__ = ["from_arrays", "import_hdf5", "import_minari", "import_npz"]

_Path = str | os.PathLike[str]

_SLICE_BYTES = 1 << 24
_OBSERVATIONS = "observations"
_REWARDS = "rewards"
_ENDS = ("terminals", "timeouts", "terminations", "truncations", "terminated", "truncated", "dones")
_OWN = ("run_id", "step_index")  # a writer fills these in
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class _Column(NamedTuple):
    """Values with a row for each step, which are read from the first to the last."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Rows first."""
    read: Callable[[int, int], NDArray[Any]]

    @classmethod
    def of(cls, array: Any) -> Self:
        return cls(array.dtype, array.shape, lambda begin, end: array[begin:end])


def from_arrays(
    out: _Path,
    columns: Mapping[str, ArrayLike],
    *,
    run_lengths: ArrayLike | None = None,
    ends: ArrayLike | None = None,
    run_columns: Mapping[str, Iterable[Any]] | None = None,
    shard_bytes: int | None = None,
) -> StepReader:
    """Make a step dataset of equally long arrays, a row each from all of them.

    Runs have the given lengths, or end where `ends` is True (terminated or truncated; rows behind
    the last end are a run too); with neither, all rows are one run. `run_columns` have a
    value for each run. Rows are spread over files of `shard_bytes` if it is given.

    Raises `SchemaError` for arrays of unequal length or of anything but numbers.
    """
    if run_lengths is not None and ends is not None:
        raise ValueError("give either run_lengths or ends")
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    lengths = {name: len(array) if array.ndim else None for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        raise SchemaError(f"arrays must be equally long, got {lengths}")
    reserved = [name for name in arrays if name in _OWN]
    if reserved:
        raise SchemaError(f"{', '.join(reserved)}: filled in when runs are written; rename it")
    found = {name: _Column.of(array) for name, array in arrays.items()}
    rows = len(next(iter(arrays.values())))
    counts = _lengths(rows, run_lengths, ends)
    known = {name: list(values) for name, values in (run_columns or {}).items()}
    for name, values in known.items():
        if len(values) != len(counts):
            raise SchemaError(f"{name}: expected a value for {len(counts)} runs, got {len(values)}")
    kinds = {name: _run_column(name, values) for name, values in known.items()}

    def runs(dtype: np.dtype[Any]) -> Iterator[StepRun]:
        for i, part in enumerate(_cut(found, dtype, counts)):
            yield part, {name: values[i] for name, values in known.items()}

    return publish_runs(out, _dtype_of(found), kinds, runs, shard_bytes)


def import_npz(path: _Path, out: _Path, *, shard_bytes: int | None = None) -> StepReader:
    """Make a step dataset of a `.npz` file with `observations` and, if there are, `actions`,
    `rewards`, `next_observations` and others of that length.

    Runs end where `terminals`, `timeouts` or another flag of that kind is set; each has its
    `total_reward` if there are rewards. What has another length is left out, with a warning.
    Raises `FormatError` when the file is no such dictionary.
    """
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
        except zipfile.BadZipFile as error:
            raise FormatError(f"expected an .npz file: {error}", path=str(path)) from None

        def columns() -> dict[str, _Column]:
            members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            return {
                info.filename.removesuffix(".npy"): _npz_column(archive, info, stack)
                for info in members
            }

        return _import(Path(path), out, columns, shard_bytes)


def import_hdf5(path: _Path, out: _Path, *, shard_bytes: int | None = None) -> StepReader:
    """Make a step dataset of an HDF5 file, as `import_npz` does; `infos/qpos` becomes
    `infos.qpos`. Needs the extra `hdf5`.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError("import_hdf5 needs an extra: pip install 'stepwell[hdf5]'") from error
    Path(path).stat()
    with ExitStack() as stack:
        with _problems_of(Path(path)):
            file = stack.enter_context(h5py.File(path, "r"))

        def columns() -> dict[str, _Column]:
            found: dict[str, _Column] = {}

            def visit(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and item.shape is not None:
                    found[name] = _Column.of(item)  # read when it is sliced

            file.visititems(visit)
            return found

        return _import(Path(path), out, columns, shard_bytes)


def import_minari(
    dataset: "str | minari.MinariDataset", out: _Path, *, shard_bytes: int | None = None
) -> StepReader:
    """Make a step dataset of a Minari dataset, or of the local one with an id: a run per episode.

    A row is a transition: `observation`, `action`, `reward` (float64), `terminated`, `truncated`
    and `next_observation`. An episode of T steps has T + 1 observations, so each but the first and
    the last is there twice; in return any row can be used alone, and where an episode was
    truncated its last observation is not lost. Parts of Dict and Tuple spaces become fields
    `observation.name` and `observation.0`. Infos are left out.

    Run columns: `episode` (its id), `total_reward`, and `seed` where it is known, as text,
    because Minari draws seeds that SQLite's numbers cannot hold. Needs the extra `minari`.
    """
    if isinstance(dataset, str):
        try:
            import minari
        except ImportError as error:
            raise ImportError(
                "import_minari needs an extra: pip install 'stepwell[minari]'"
            ) from error
        dataset = minari.load_dataset(dataset)
    if not len(dataset.episode_indices):
        raise SchemaError(f"{dataset.id}: no episodes")
    first = _transitions(next(iter(dataset.iterate_episodes(dataset.episode_indices[:1]))))
    dtype = _dtype_of({name: _Column.of(array) for name, array in first.items()})
    kinds = {"episode": RunColumn(int), "total_reward": RunColumn(float), "seed": RunColumn(str)}
    metadata = dataset.storage.get_episode_metadata(dataset.episode_indices)

    def runs(_: np.dtype[Any]) -> Iterator[StepRun]:
        for episode, facts in zip(dataset.iterate_episodes(), metadata, strict=True):
            seed = facts.get("seed")
            yield (
                _transitions(episode),
                {
                    "episode": int(episode.id),
                    "total_reward": float(np.sum(episode.rewards, dtype=np.float64)),
                    "seed": None if seed is None else str(int(seed)),
                },
            )

    return publish_runs(out, dtype, kinds, runs, shard_bytes)


# Writing.


def _dtype_of(columns: Mapping[str, _Column]) -> np.dtype[Any]:
    """The packed dtype of a row of all columns."""
    for name, column in columns.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SchemaError(f"{name!r} cannot name a field: letters, digits and _ . - can")
        if column.dtype.kind not in "biufc":
            raise SchemaError(f"{name}: expected numbers, got {column.dtype}")
    if not next(iter(columns.values())).shape[0]:
        raise SchemaError("there are no rows")
    fields = [(name, c.dtype.newbyteorder("="), c.shape[1:]) for name, c in columns.items()]
    return np.dtype(fields)


def _cut(
    columns: Mapping[str, _Column], dtype: np.dtype[Any], lengths: Iterable[int]
) -> Iterator[NDArray[Any]]:
    """The rows of each run in turn, read in slices of many runs."""
    total = next(iter(columns.values())).shape[0]
    size = max(1, _SLICE_BYTES // dtype.itemsize)
    held, first, begin = np.empty(0, dtype), 0, 0
    for length in lengths:
        end = begin + length
        last = first + len(held)
        if end > last:
            rest = held[begin - first :]
            held = np.empty(min(total, max(end, begin + size)) - begin, dtype)
            held[: len(rest)] = rest
            first = begin
            for name, column in columns.items():
                held[name][len(rest) :] = column.read(last, first + len(held))
        yield held[begin - first : end - first]
        begin = end


# Runs.


def _lengths(rows: int, given: ArrayLike | None, ends: ArrayLike | None) -> list[int]:
    """The lengths of the runs, by whichever of both there is."""
    if given is not None:
        lengths = np.asarray(given)
        if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
            raise SchemaError(f"run_lengths: expected whole numbers, got {lengths.dtype}")
        if lengths.min(initial=0) < 0 or lengths.sum() != rows:
            raise SchemaError(f"run_lengths: expected {rows} rows in all, got {lengths.sum()}")
        return [int(length) for length in lengths]
    if ends is None:
        return [rows]
    flags = np.asarray(ends)
    if flags.dtype != np.bool or flags.shape != (rows,):
        raise SchemaError(f"ends: expected {rows} booleans, got {flags.dtype} {flags.shape}")
    return _between(np.flatnonzero(flags) + 1, rows)


def _between(stops: NDArray[np.intp], rows: int) -> list[int]:
    """The lengths of runs that end before these rows, and of the one behind them."""
    bounds = np.unique(np.concatenate([[0], stops, [rows]]))
    return [int(length) for length in np.diff(bounds)]


def _run_column(name: str, values: list[Any]) -> RunColumn:
    """What kind of run column holds these values."""
    kinds = {type(v.item() if isinstance(v, np.generic) else v) for v in values if v is not None}
    if kinds <= {int, bool}:
        return RunColumn(int)
    if kinds <= {int, bool, float}:
        return RunColumn(float)
    if kinds in ({str}, {bytes}):
        return RunColumn(kinds.pop())
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise SchemaError(f"{name}: expected numbers, texts or bytes, got {names}")


# Dictionaries in files.


def _import(
    path: Path,
    out: _Path,
    columns: Callable[[], dict[str, _Column]],
    shard_bytes: int | None,
) -> StepReader:
    """Make a dataset of the columns in a file; they are asked for once for each pass over it."""
    with _problems_of(path):
        everything = columns()
    if not everything:
        raise FormatError("there are no arrays", path=str(path))
    if _OBSERVATIONS not in everything:
        names = ", ".join(sorted(everything)[:8]) + (", …" if len(everything) > 8 else "")
        raise FormatError(
            f"expected an array {_OBSERVATIONS!r}, got {names}; from_arrays takes any names",
            path=str(path),
        )
    shape = everything[_OBSERVATIONS].shape
    rows = shape[0] if shape else 0
    if not rows:
        raise FormatError(f"{_OBSERVATIONS}: there are no rows", path=str(path))
    kept = {name: c for name, c in everything.items() if c.shape[:1] == (rows,)}
    ends = [name for name in _ENDS if name in kept and np.prod(kept[name].shape[1:]) == 1]
    if not ends:
        raise FormatError(
            f"expected {rows} flags that end runs, one of {', '.join(_ENDS)}; "
            "from_arrays takes arrays without them",
            path=str(path),
        )
    left_out = {name: f"{c.shape}" for name, c in everything.items() if name not in kept}
    left_out |= {name: "a name of stepwell's own" for name in kept if name in _OWN}
    fields = {name: name.replace("/", ".") for name in kept if name not in left_out}
    if len(set(fields.values())) < len(fields):
        raise SchemaError(f"{path}: two arrays have the same name, / and . being the same")
    if left_out:
        listed = ", ".join(f"{name} ({why})" for name, why in left_out.items())
        warnings.warn(f"{path}: {rows} rows; left out: {listed}", stacklevel=3)
    try:
        dtype = _dtype_of({fields[name]: kept[name] for name in fields})
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from None
    with _problems_of(path):
        stops = np.concatenate(list(_ends(kept, ends, rows)))
        anew = columns()
    rewards = _REWARDS if _REWARDS in fields else None

    def runs(dtype: np.dtype[Any]) -> Iterator[StepRun]:
        parts = _cut({fields[name]: anew[name] for name in fields}, dtype, _between(stops, rows))
        while True:
            with _problems_of(path):
                part = next(parts, None)
            if part is None:
                return
            total = (
                {}
                if rewards is None
                else {"total_reward": float(np.sum(part[rewards], dtype=np.float64))}
            )
            yield part, total

    kinds = {} if rewards is None else {"total_reward": RunColumn(float)}
    return publish_runs(out, dtype, kinds, runs, shard_bytes)


def _ends(columns: Mapping[str, _Column], names: list[str], rows: int) -> Iterator[NDArray[Any]]:
    """Where runs end: behind each row for which one of the flags is set."""
    for begin in range(0, rows, _SLICE_BYTES):
        end = min(rows, begin + _SLICE_BYTES)
        flags = [columns[name].read(begin, end).reshape(-1) != 0 for name in names]
        yield np.flatnonzero(np.logical_or.reduce(flags)) + begin + 1


def _npz_column(archive: zipfile.ZipFile, info: zipfile.ZipInfo, stack: ExitStack) -> _Column:
    """An array of an archive as a stream; the whole array if its order is Fortran's."""
    file = stack.enter_context(archive.open(info))
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"{info.filename}: .npy version {version}")
    row_bytes = dtype.itemsize * math.prod(shape[1:])
    size = row_bytes * shape[0] if shape else dtype.itemsize
    if not dtype.hasobject and file.tell() + size != info.file_size:
        raise ValueError(f"{info.filename}: {size} bytes of data in a file of {info.file_size}")

    @cache
    def turned() -> NDArray[Any]:
        return np.frombuffer(file.read(size), dtype).reshape(shape, order="F")

    def read(begin: int, end: int) -> NDArray[Any]:
        if fortran and len(shape) > 1:
            return turned()[begin:end]
        data = file.read((end - begin) * row_bytes)
        return np.frombuffer(data, dtype).reshape(end - begin, *shape[1:])

    return _Column(dtype, shape, read)


@contextmanager
def _problems_of(path: Path) -> Iterator[None]:
    """What a reader of files says about damage, as an error that names the file."""
    try:
        yield
    except (*_DAMAGE, OSError, ValueError) as error:
        raise FormatError(f"cannot be read: {error}", path=str(path)) from error


# Episodes.


def _transitions(episode: Any) -> dict[str, NDArray[Any]]:
    """The steps of a Minari episode, one array per field."""
    steps = len(episode.rewards)
    seen = dict(_leaves("observation", episode.observations))
    done = dict(_leaves("action", episode.actions))
    for kind, found, want in (("observations", seen, steps + 1), ("actions", done, steps)):
        for name, values in found.items():
            if values.ndim == 0 or len(values) != want:
                raise SchemaError(
                    f"episode {episode.id}: expected {want} {kind} for {steps} steps, "
                    f"got {name} of shape {values.shape}"
                )
    fields = {name: values[:-1] for name, values in seen.items()} | done
    fields["reward"] = np.asarray(episode.rewards, np.float64)
    fields["terminated"] = np.asarray(episode.terminations, np.bool)
    fields["truncated"] = np.asarray(episode.truncations, np.bool)
    fields |= {f"next_{name}": values[1:] for name, values in seen.items()}
    return fields


def _leaves(name: str, values: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays in nested dictionaries and tuples, by their path."""
    if isinstance(values, Mapping):
        for key, inner in values.items():
            yield from _leaves(f"{name}.{key}", inner)
    elif isinstance(values, tuple):
        for i, inner in enumerate(values):
            yield from _leaves(f"{name}.{i}", inner)
    else:
        yield name, np.asarray(values)
