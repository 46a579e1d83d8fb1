"""Steps of programs that have a bus or telemetry of their own, as dicts or objects."""

import dataclasses
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from inspect import signature
from types import TracebackType
from typing import Any, Self

from stepwell.errors import SchemaError
from stepwell.stores.replay.writer import ReplayWriter, StepRefs

_ARGUMENTS = frozenset(signature(ReplayWriter.record_step).parameters) - {"self"}


class ReplaySink:
    """Takes steps as a program has them, and hands each to the writer of its run; `close` it, or
    use it in a `with`.

    A step is a dict, a dataclass, a named tuple or any object with attributes. Its members are the
    arguments of `ReplayWriter.record_step`, and `run_id` where the sink has none; `names` has those
    that are called otherwise, `{"frame": "render_payload"}`. None counts as not given, and what
    else there is, is kept in `info`. `options` are those of `ReplayWriter`.

    It can be called: `bus.subscribe(sink)`. Any thread may do so.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        run_id: str | None = None,
        *,
        names: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        unknown = set(names or ()) - _ARGUMENTS - {"run_id"}
        if unknown:
            raise ValueError(
                f"names: expected {', '.join(sorted(_ARGUMENTS))} or run_id, got {min(unknown)!r}"
            )
        self._root, self._run_id, self._options = root, run_id, options
        self._names = {theirs: ours for ours, theirs in (names or {}).items()}
        self._writers: dict[str, ReplayWriter] = {}
        self._lock = threading.Lock()
        self._opened = ExitStack()
        self._closed = False
        if run_id is not None:
            self.writer(run_id)

    def writer(self, run_id: str | None = None) -> ReplayWriter:
        """The writer of a run, by default of the sink's own; to end an episode, or to commit."""
        name = self._run_id if run_id is None else run_id
        if name is None:
            raise SchemaError("run_id: expected one in the step, or ReplaySink(root, run_id)")
        with self._lock:
            if self._closed:
                raise ValueError(f"closed: {self!r}")
            found = self._writers.get(name)
            if found is None:
                found = ReplayWriter(self._root, name, **self._options)
                self._writers[name] = self._opened.enter_context(found)
            return found

    def put(self, step: Any) -> StepRefs | None:
        """Record one step; see `ReplayWriter.record_step`."""
        members = [(name, value) for name, value in _members(step) if value is not None]
        # What has the name of an argument that is there under another name is something else.
        ours = {self._names[n] for n, _ in members if n in self._names} - self._names.keys()
        given = {self._names.get(n, n): value for n, value in members if n not in ours}
        writer = self.writer(given.pop("run_id", None))
        if "reward" not in given:
            raise SchemaError(f"reward: expected one in every step, got {sorted(given)}")
        for name in ("terminated", "truncated"):
            if isinstance(given.get(name), str):  # and "false" is true
                raise SchemaError(f"{name}: expected True or False, got {given[name]!r}")
        others = {name: given.pop(name) for name in given.keys() - _ARGUMENTS}
        others |= {name: value for name, value in members if name in ours}
        info = given.get("info", {})
        if others and isinstance(info, Mapping):  # anything else is refused below
            given["info"] = {**others, **info}
        return writer.record_step(**given)

    __call__ = put

    def put_all(self, steps: Iterable[Any]) -> list[StepRefs | None]:
        """Record steps in their order. One that is refused raises; those before it are recorded."""
        found: list[StepRefs | None] = []
        for step in steps:
            try:
                found.append(self.put(step))
            except Exception as error:
                error.add_note(f"step {len(found)} of the batch")
                raise
        return found

    def commit(self) -> None:
        """Return when every step so far is on the disk."""
        for writer in list(self._writers.values()):
            writer.commit()

    def close(self) -> None:
        """Close every writer. Once; later calls do nothing."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._closed = True
        self._opened.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"ReplaySink({os.fspath(self._root)!r}, {len(self._writers)} runs)"


def _members(step: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(step, Mapping):
        return step.items()
    if not isinstance(step, type):
        names = getattr(step, "_fields", None)
        if dataclasses.is_dataclass(step):
            names = [field.name for field in dataclasses.fields(step)]
        if names is not None:
            return [(name, getattr(step, name)) for name in names]
        if hasattr(step, "__dict__"):
            return list(vars(step).items())
    raise TypeError(f"step: expected a dict or an object, got {type(step).__name__}")
