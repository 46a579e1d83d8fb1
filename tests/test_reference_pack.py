"""What the reference of docs/formats/pack.md is held to, besides our reader and the page itself."""

import json

import numpy as np

from tests.reference import runs
from tests.reference.pack import Number, run_line, stats_of, step_lines
from tests.reference.runs import Meta, Run, crc32c


def test_runs_without_an_engine_count_together() -> None:
    metas = [Meta(0, 0, 0.0, 0, 4, engine) for engine in (None, "", "é", "z", "𝄞", "\uffff")]
    stats = stats_of([(2, runs.encode_v2(Run(meta, [], 0))) for meta in metas] + [(16, b"")])
    assert stats.count == 7
    assert stats.highest_tile_hist == [(4, 6)]
    assert stats.engine_counts == [("", 2), ("z", 1), ("é", 1), ("\uffff", 1), ("𝄞", 1)]


def test_floats_of_the_page() -> None:
    written = ["0.001", "1e-04", "1e+05", "12345.0", "1.5e-07", "123456792.0", "-0.0", "0.1"]
    assert [Number(float(text)).text() for text in written] == written
    assert Number(123456789).text() == "123456792.0"
    assert [Number(value).text() for value in (np.nan, np.inf, -np.inf)] == ["null"] * 3


def test_the_best_branch_is_written_as_one() -> None:
    step = runs.Step(0, runs.UP, [runs.BEST, runs.BEST, None, 0.5])
    data = runs.encode_v2(Run(Meta(1, 0, 0.0, 0, 2, None), [step], 0))
    (line,) = step_lines(2**32 + 5, data)
    record = json.loads(line)
    assert [branch["value"] for branch in record["branches"]] == [1.0, 0.9999999, 0.0, 0.5]
    assert record["run_uuid"] == f"a2r-{crc32c(data):08x}-00000005"
    assert json.loads(run_line(0, runs.decode(data)))["branches"] == [
        [0.9999999, 0.9999999, None, 0.5]
    ]


def test_strings_are_escaped_no_more_than_needed() -> None:
    meta = Meta(0, 0, 0.0, 0, 2, 'é"\\\n\x1f\x7f/')
    assert '"engine":"é\\"\\\\\\n\\u001f\x7f/"' in run_line(0, Run(meta, [], 0))
