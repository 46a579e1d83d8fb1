"""JSON lines of others: what fields they are, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import batches
from stepwell.formats.jsonl import JsonlSource
from tests.formats.rows import assert_same, contents, refused


def test_fields_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"i": 1, "f": 2, "big": 18446744073709551615, "b": true, "t": "ä", "v": [1, 2], '
        '"r": [], "m": [[1.5, 2]]}\n\n'
        '{"m": [[3, 4]], "f": 0.5, "big": 0, "i": -1, "b": false, "t": "", "v": [3, 4], '
        '"r": [[1, 2], [3, 4]]}\n'
    )
    want: dict[str, Any] = {
        "i": np.array([1, -1]),
        "f": np.array([2, 0.5]),
        "big": np.array([2**64 - 1, 0], np.uint64),
        "b": np.array([True, False]),
        "t": ["ä", ""],
        "v": np.array([[1, 2], [3, 4]]),
        "r": [np.zeros((0, 2), int), np.array([[1, 2], [3, 4]])],
        "m": np.array([[[1.5, 2]], [[3, 4]]]),
    }
    for size in (1 << 23, 1):
        monkeypatch.setattr(batches, "BATCH_BYTES", size)
        assert_same(contents(JsonlSource(tmp_path / "a.jsonl")), want)


def test_many_lines_from_anywhere(tmp_path: Path) -> None:
    lines = [f'{{"n": {i}}}\n' for i in range(3000)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    source = JsonlSource(tmp_path / "a.jsonl")
    assert source["n"][[2999, 0, 1024, 1023]].tolist() == [2999, 0, 1024, 1023]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "expected rows with fields"),
        ("{}", "expected rows with fields"),
        ('{"a": 1}\n{"b": 1}', "line 2: expected a, got b"),
        ('{"a": null}', "line 1: 'a': expected a number, text or a list, got null"),
        ('{"a": {}}', "got dict"),
        ('{"a": 1}\n{"a": "x"}', "expected values of one kind, got int, str"),
        ('{"a": 1}\n{"a": [1]}', "expected values or lists, got both"),
        ('{"a": [1, [2]]}', "expected lists of equal shapes"),
        ('{"a": [[1]]}\n{"a": [[1, 2], [3, 4]]}', "expected lists of equal shapes"),
        ('{"a": ["x"]}', "lists of text"),
        ('{"a": [[]]}', "lists of empty lists"),
        (f'{{"a": {2**64}}}', "whole numbers of up to 64 bits"),
        ('{"a": NaN}', "line 1: NaN is not JSON"),
        ("[1]", "line 1: expected an object, got list"),
        ('{"a": 1', "line 1: "),
        ("[" * 100_000, "line 1: "),
        ('{"a": "\\xff"}', "line 1: "),
    ],
)
def test_lines_that_are_refused(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    refused(tmp_path / "a.jsonl", error)
