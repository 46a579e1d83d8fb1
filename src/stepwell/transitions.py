"""What follows a step in its run: the next observation, rewards over n steps, returns to go.

A stretch is a part of a run without a gap. `cut` marks the last row of each: nothing that is known
followed it. Step datasets, replays and views of them use the same functions.
"""

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.batches import in_order
from stepwell.errors import SchemaError
from stepwell.memory import Arrays
from stepwell.source import Field, Rows, Schema, Source
from stepwell.views import Beside, Chosen, Concat, first_rows

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_OBSERVATION = ("obs", "observation", "observations")
_REWARD = ("reward", "rewards")
_TERMINATED = ("terminated", "terminations", "terminals")
_TRUNCATED = ("truncated", "truncations", "timeouts")
_AT_ONCE = 1 << 20
"""Rows that are looked at together, to the end of a stretch."""


class Names(NamedTuple):
    """The fields that transitions are made of."""

    observation: tuple[str, ...]
    reward: str | None
    terminated: str | bool
    truncated: str | None


def find(
    schema: Schema,
    observation: str | Sequence[str] | None,
    reward: str | None,
    terminated: str | bool | None,
    truncated: str | None,
) -> Names:
    """The fields by the names that were given, or by the usual ones."""
    if observation is None:
        seen = tuple(name for name in schema if re.split("[./]", name)[0] in _OBSERVATION)
    else:
        seen = (observation,) if isinstance(observation, str) else tuple(observation)
    if not seen:
        raise SchemaError(f"expected observations, got {list(schema)}; name them: observation='…'")
    for name in seen:
        if name not in schema or schema[name].ragged:
            got = schema.get(name, f"only {list(schema)}")
            raise SchemaError(f"observation {name!r}: expected rows of a fixed shape, got {got}")
    if not isinstance(terminated, bool):
        terminated = _number(schema, terminated, _TERMINATED)
    if terminated is None:
        raise SchemaError(
            f"expected a field that shows which steps were terminated, got {list(schema)}; give "
            "terminated='…', or True if every run ends with such a step, or False if none does"
        )
    others = _number(schema, reward, _REWARD), _number(schema, truncated, _TRUNCATED)
    return Names(seen, others[0], terminated, others[1])


def find_rewards(
    schema: Schema, reward: str | None, terminated: str | None, truncated: str | None
) -> tuple[str, list[str]]:
    """The same of what returns are made of: rewards, and flags where there are some."""
    name = _number(schema, reward, _REWARD)
    if name is None:
        raise SchemaError(f"expected rewards, got {list(schema)}; name them: reward='…'")
    flags = _number(schema, terminated, _TERMINATED), _number(schema, truncated, _TRUNCATED)
    return name, [each for each in flags if each is not None]


def _number(schema: Schema, given: str | None, usual: Sequence[str]) -> str | None:
    """A field of one number a row: the one that was named, or one under a usual name, or None."""
    name = given if given is not None else next((n for n in usual if n in schema), None)
    if name is None:
        return None
    field = schema.get(name)
    if field is None or field.ragged or field.dtype.kind not in "biuf" or np.prod(field.shape) != 1:
        got = f"only {list(schema)}" if field is None else str(field)
        raise SchemaError(f"field {name!r}: expected a number a row, got {got}")
    return name


def check_steps(n_step: int, gamma: float) -> None:
    """Raise `ValueError` for what no return can be made with."""
    if operator.index(n_step) < 1:
        raise ValueError(f"n_step: expected at least 1, got {n_step}")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma: expected 0 to 1, got {gamma}")


# Of one stretch after another.


def reach(cut: Flags, n: int) -> Rows:
    """Of each step the one n - 1 later, or the last of its stretch."""
    ends, steps = np.flatnonzero(cut), np.arange(len(cut))
    return (
        np.minimum(steps + min(n, len(cut)) - 1, ends[np.searchsorted(ends, steps)])
        if len(cut)
        else steps
    )


def look_ahead(reward: Floats, reached: Rows, n: int, gamma: float) -> tuple[Floats, Floats]:
    """The rewards up to the step that is reached, and the discount behind it."""
    steps = np.arange(len(reward))
    total = np.zeros(len(reward))
    for k in range(n):
        there = np.flatnonzero(steps + k <= reached)
        if not len(there):
            break
        total[there] += gamma**k * reward[there + k]
    return total, np.power(np.float64(gamma), reached - steps + 1)


def to_go(reward: Floats, cut: Flags, over: Flags, gamma: float) -> Floats:
    """The rewards of each step and of those behind it; NaN where a stretch ends before its episode
    is over, as marked: what came then is not known."""
    total, more = np.where(cut & ~over, np.nan, reward), ~cut
    ahead, factor = 1, float(gamma)
    while factor and len(there := np.flatnonzero(more)):  # twice as far each time
        total[there] += factor * total[there + ahead]
        more[there] &= more[there + ahead]
        ahead, factor = 2 * ahead, factor * factor
    return total


# Views.


class Transitions(Beside):
    """Steps of a source with what was seen after them."""

    def __init__(self, base: Source, n_step: int, gamma: float, names: Names) -> None:
        check_steps(n_step, gamma)
        self._made_of, self._known = (base, n_step, gamma, names), len(base)
        zero_rows = min(int(n_step), max(len(base), 1))
        seen, reward, terminated, truncated = names
        own = [f"next_{name}" for name in seen if f"next_{name}" in base.schema]
        unseen = {f"next_{name}": name for name in seen if f"next_{name}" not in own}
        flags = [name for name in (terminated, truncated) if isinstance(name, str)]
        if n_step > 1:
            _check_single(base)
            if reward is None:
                raise SchemaError(f"expected rewards, got {list(base.schema)}; reward='…'")
        columns, cut, over = _read(base, [reward] if n_step > 1 else [], flags)
        done = columns[terminated] != 0 if isinstance(terminated, str) else over & terminated
        now, last, after, lengths = [], [], [], []
        made: dict[str, list[NDArray[Any]]] = {"terminated": [], "reward": [], "discount": []}
        for begin, end in _stretches(cut):
            here = cut[begin:end]
            reached = reach(here, n_step)
            final, gone = here[reached], done[begin:end][reached]
            rows = np.flatnonzero(gone | ~final) if unseen else np.arange(end - begin)
            # Zeros are as many as steps can share, so that those that do are a range as well.
            zeros = np.arange(end - begin) - reached + zero_rows - 1
            following = np.where(final, zeros, reached + begin + zero_rows + 1)
            now.append(_ranges(rows + begin))
            last.append(_ranges(reached[rows] + begin))
            after.append(_ranges(following[rows]))
            ends = np.flatnonzero(here)
            lengths.append(np.bincount(np.searchsorted(ends, rows), minlength=len(ends)))
            made["terminated"].append(gone[rows])
            if reward and n_step > 1:
                rewards = columns[reward][begin:end].astype(np.float64)
                total, discount = look_ahead(rewards, reached, n_step, gamma)
                made["reward"].append(total[rows])
                made["discount"].append(np.where(gone, 0.0, discount)[rows])
        self._lengths = np.concatenate([np.empty(0, np.int64), *lengths])
        self._now = _map(now)
        moved = [*flags, *own] if n_step > 1 else []
        parts: list[Source] = [Chosen(base, self._now)]
        if moved:
            parts.append(Chosen(base.columns(moved), _map(last)))
        if unseen:
            next_ = base.columns(unseen)
            zeros_ = Arrays.zeros(next_.schema, zero_rows)  # first: the base may grow
            parts.append(Chosen(Concat((zeros_, next_)), _map(after)))
        fields = {} if isinstance(terminated, str) else {"terminated": Field(bool)}
        if reward and n_step > 1:
            total_ = _floats(base.schema[reward])
            fields |= {reward: total_, "discount": Field(total_.dtype)}
        if fields:
            arrays = {"terminated": "terminated", reward: "reward", "discount": "discount"}
            parts.append(
                Arrays({n: _joined(made[arrays[n]], field) for n, field in fields.items()})
            )
        super().__init__(*parts)

    def __reduce__(self) -> tuple[Any, ...]:
        base, *how = self._made_of
        return Transitions, (first_rows(base, self._known), *how)

    def _runs(self) -> tuple[Rows, Rows]:
        return np.cumsum(self._lengths) - self._lengths, self._lengths

    def _cuts(self) -> tuple[Flags, Flags]:
        return Source._cuts(self)

    def _returns(self, gamma: float, reward: str, flags: Sequence[str]) -> Source:
        base = self._made_of[0]
        known = [name for name in flags if name in base.schema]
        return Chosen(base._returns(gamma, reward, known), self._now)

    def _check_open(self) -> None:
        self._made_of[0]._check_open()


class Returns(Beside):
    """The rows of a source, each with its return to go."""

    def __init__(self, base: Source, gamma: float, reward: str, flags: Sequence[str]) -> None:
        check_steps(1, gamma)
        self._made_of, self._known = (base, gamma, reward, flags), len(base)
        made = base._returns(gamma, reward, flags)
        first = slice(len(made))  # as many, though it may grow
        super().__init__(base.select(first), made.select(first))

    def __reduce__(self) -> tuple[Any, ...]:
        base, *how = self._made_of
        return Returns, (first_rows(base, self._known), *how)

    def _runs(self) -> tuple[Rows, Rows]:
        return self._parts["0"]._runs()

    def _cuts(self) -> tuple[Flags, Flags]:
        return self._parts["0"]._cuts()

    def _check_open(self) -> None:
        self._made_of[0]._check_open()


def returns(source: Source, gamma: float, reward: str, flags: Sequence[str]) -> Source:
    """The returns of a source as a field `return_to_go`."""
    _check_single(source)
    columns, cut, over = _read(source, [reward], flags)
    for name in flags:
        over |= columns[name] != 0
    made = [
        to_go(columns[reward][b:e].astype(np.float64), cut[b:e], over[b:e], gamma)
        for b, e in _stretches(cut)
    ]
    return Arrays({"return_to_go": _joined(made, Field(_floats(source.schema[reward]).dtype))})


def _check_single(source: Source) -> None:
    if "discount" in source.schema:
        raise SchemaError(
            "expected rewards of single steps, got a source that has a 'discount', as those of "
            "several have; begin with the steps that it was made of"
        )


def _floats(field: Field) -> Field:
    """The field that such numbers have when they are added up."""
    return Field(field.dtype if field.dtype.kind == "f" else np.dtype(np.float64), field.shape)


def _joined(parts: Sequence[NDArray[Any]], field: Field) -> NDArray[Any]:
    joined = np.concatenate([np.empty(0, field.dtype), *(p.astype(field.dtype) for p in parts)])
    return joined.reshape(-1, *field.shape)


def _read(
    source: Source, names: Sequence[str | None], flags: Sequence[str]
) -> tuple[dict[str, NDArray[Any]], Flags, Flags]:
    """Columns of one number a row; behind which rows nothing follows, flags included; and which are
    the last of a run."""
    wanted = list(dict.fromkeys(name for name in (*names, *flags) if name))
    made = {name: np.empty(len(source), source.schema[name].dtype) for name in wanted}
    first = 0
    for batch in in_order(source.columns(wanted)) if wanted else ():
        for name, values in batch.items():
            made[name][first : first + len(values)] = values.reshape(-1)
        first += len(values)
    cut, over = (each.copy() for each in source._cuts())
    for name in flags:
        cut |= made[name] != 0
    return made, cut, over


def _stretches(cut: Flags) -> Iterator[tuple[int, int]]:
    """Parts of the rows, each some stretches long."""
    ends, begin = np.flatnonzero(cut) + 1, 0
    while begin < len(cut):
        found = int(np.searchsorted(ends, begin + _AT_ONCE))
        end = int(ends[min(found, len(ends) - 1)])
        yield begin, end
        begin = end


_Ranges = tuple[Rows, Rows]


def _ranges(rows: Rows) -> _Ranges:
    """Rows as the first of each range of neighbours, and how many there are."""
    begins = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    return rows[begins], np.diff(begins, append=len(rows))


def _map(parts: Iterable[_Ranges]) -> _core.RowMap:
    """All of these rows: by ranges, or by their numbers where most ranges are short."""
    none = np.empty(0, np.int64)
    starts, counts = (np.concatenate(each) for each in zip((none, none), *parts, strict=True))
    total = int(counts.sum())
    if 8 * len(starts) <= total:
        return _core.range_map(starts, counts)
    return _core.index_map(
        np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(total)
    )
