"""Step datasets that several write in a bucket, and what must be in them.

A run has a writer and a number, and all its rows have both: whatever is read is compared with that.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stepwell as sw
from stepwell import FetchError, StepReader, StepWriter
from tests.buckets import Bucket
from tests.proxy import Answer, Request

STEP = np.dtype([("who", "<i4"), ("n", "<i4"), ("run_id", "<u4"), ("step_index", "<u2")])
COLUMNS = {"who": int, "n": int}


def length(who: int, n: int) -> int:
    return (who * 7 + n * 5) % 23


def append(writer: StepWriter, who: int, *numbers: int) -> None:
    for n in numbers:
        count = length(who, n)
        writer.append({"who": np.full(count, who), "n": np.full(count, n)}, who=who, n=n)


def writer_of(s3: Bucket, name: str, mode: Any = "a", **options: Any) -> StepWriter:
    return StepWriter(s3.url(name), STEP, COLUMNS, mode=mode, **{**s3.options, **options})


def written(s3: Bucket, name: str, who: int, *numbers: int, **options: Any) -> None:
    """Have these runs of a writer, in one commit."""
    with writer_of(s3, name, **options) as writer:
        append(writer, who, *numbers)


def opened(s3: Bucket, name: str, **options: Any) -> StepReader:
    return StepReader.open(s3.url(name), **{**s3.options, **options})


def runs_in(reader: StepReader) -> list[tuple[int, int]]:
    """The runs in their order, whose rows are all compared."""
    taken: NDArray[Any] = reader.take(np.arange(len(reader)), packed=True)
    found, at = [], 0
    for run in reader.runs:
        who, n = run["who"], run["n"]
        rows = taken[at : at + run["num_steps"]]
        assert len(rows) == length(who, n)
        assert run["first_step_idx"] == at or reader._table._chosen is not None
        assert (rows["who"] == who).all()
        assert (rows["n"] == n).all()
        assert (rows["run_id"] == run["id"]).all()
        assert (rows["step_index"] == np.arange(len(rows))).all()
        found.append((who, n))
        at += len(rows)
    assert at == len(taken)
    assert len(set(reader.runs["id"].tolist())) == len(found)
    return found


def check(reader: sw.Store, *wanted: tuple[int, int]) -> None:
    """The dataset has these runs, each once, and nothing is damaged."""
    assert isinstance(reader, StepReader)
    assert Counter(runs_in(reader)) == Counter(wanted)
    report = reader.verify()
    assert report.ok, report
    assert not report.unchecked


def answers_lost(s3: Bucket, writer: Any, part: str, work: Any = None) -> None:
    """A commit, or other work, of which the server has carried out a put; nobody hears of it."""
    writer._files._deadline_s, carried_out = 0.3, False

    def lost(request: Request, answer: Answer) -> Answer | None:
        nonlocal carried_out
        carried_out |= request.method == "PUT" and part in request.path
        return None if carried_out else answer

    s3.proxy.fault = lost
    with pytest.raises(FetchError):
        (work or writer.commit)()
    s3.proxy.fault, writer._files._deadline_s = None, 60
    assert carried_out
