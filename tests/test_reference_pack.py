"""docs/formats/pack.md and its reference agree: on whole files, on lines, on what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.packs import changed, summed
from tests.reference import runs
from tests.reference.pack import (
    LZ4,
    ZSTD_DICTIONARY,
    Entry,
    Number,
    Stats,
    decode_stats,
    encode_stats,
    quantile,
    read_pack,
    run_line,
    stats_of,
    step_lines,
    write_pack,
)
from tests.reference.runs import Broken, BrokenChecksum, Meta, Run, crc32c
from tests.runs import RUN_V1, RUN_V2

PAGE = "pack.md"
WHOLE_V1 = runs.file_of(PAGE, "pack-v1")
WHOLE_V2 = runs.file_of(PAGE, "pack-v2")
HELLO = Entry(16, b"hello")


# The page's files.


def test_the_v1_pack_of_the_page() -> None:
    pack = read_pack(WHOLE_V1, verify=True)
    assert pack.version == 1
    assert pack.offsets == [128, 256]
    assert pack.entries == [Entry(1, RUN_V1), Entry(2, RUN_V2)]
    assert pack.dictionary is None
    assert pack.stats == stats_of([(1, RUN_V1), (2, RUN_V2)])
    assert pack.stats == Stats(
        count=2,
        total_steps=5,
        min_len=2,
        max_len=3,
        mean_len=2.5,
        p50=3,
        p90=3,
        p99=3,
        highest_tile_hist=[(512, 1), (2048, 1)],
        engine_counts=[("test-engine", 1), ("test-engine-v2", 1)],
    )
    assert write_pack(pack.entries, 64, pack.stats) == WHOLE_V1


def test_the_v2_pack_of_the_page() -> None:
    pack = read_pack(WHOLE_V2, verify=True)
    assert pack.version == 2
    assert pack.offsets == [64]
    assert pack.entries == [HELLO]
    assert pack.stats == Stats(count=1, highest_tile_hist=[], engine_counts=[])
    assert write_pack([HELLO], 8, pack.stats) == WHOLE_V2


@pytest.mark.parametrize("name", ["pack-v1", "pack-v2"])
def test_the_breakdown_is_the_file(name: str) -> None:
    at = 0
    whole = runs.file_of(PAGE, name)
    for offset, part in runs.breakdown_of(PAGE, name):
        assert (offset, part) == (at, whole[at : at + len(part)])
        at += len(part)
    assert at == len(whole)


# Round trips.

entries_of_v1 = st.sampled_from([Entry(1, RUN_V1), Entry(2, RUN_V2)])
entries_of_v2 = st.builds(Entry, st.integers(16, 65535), st.binary(max_size=70)) | st.builds(
    Entry, st.integers(16, 65535), st.binary(max_size=70), st.integers(1, 3), st.integers(0, 2**20)
)


@given(
    st.lists(entries_of_v1 | entries_of_v2, min_size=1, max_size=8),
    st.integers(0, 9).map(lambda power: 1 << power),
    st.booleans(),
    st.binary(max_size=9),
    st.booleans(),
)
def test_packs_come_back(
    entries: list[Entry], align: int, has_stats: bool, dictionary: bytes, data_crc: bool
) -> None:
    stats = stats_of((entry.kind, entry.stored) for entry in entries) if has_stats else None
    data = write_pack(entries, align, stats, dictionary, data_crc)
    pack = read_pack(data, verify=True)
    assert (pack.entries, pack.stats, pack.dictionary) == (entries, stats, dictionary)
    assert pack.version == 2
    assert all(offset % align == 0 for offset in pack.offsets)


@given(st.lists(entries_of_v1, min_size=1, max_size=6))
def test_version_1_is_written_where_it_can_be(entries: list[Entry]) -> None:
    assert read_pack(write_pack(entries)).version == 1
    assert read_pack(write_pack([*entries, HELLO])).version == 2
    assert read_pack(write_pack(entries, dictionary=b"x")).version == 2


def test_an_empty_payload_has_a_place() -> None:
    pack = read_pack(write_pack([Entry(20, b"")] * 3 + [HELLO], 64), verify=True)
    assert pack.offsets == [192] * 4


def test_what_a_writer_refuses() -> None:
    with pytest.raises(ValueError, match="at least one"):
        write_pack([])
    for align in (0, 3, 48, 2**31, -1):
        with pytest.raises(ValueError, match="power of two"):
            write_pack([HELLO], align)


# Statistics.


def test_quantiles() -> None:
    assert quantile([4], 0.99) == 4
    assert quantile([1, 2], 0.5) == 2  # 0.5 rounds away from zero
    assert quantile([0, 1, 2, 3, 4, 5], 0.5) == 3  # 2.5
    assert quantile([0, 1, 2, 3, 4, 5], 0.9) == 5  # 4.5
    assert quantile(range(101), 0.9) == 90
    assert quantile(range(101), 0.99) == 99


def test_runs_without_an_engine_count_together() -> None:
    metas = [Meta(0, 0, 0.0, 0, 4, engine) for engine in (None, "", "é", "z", "𝄞", "\uffff")]
    stats = stats_of([(2, runs.encode_v2(Run(meta, [], 0))) for meta in metas] + [(16, b"")])
    assert stats.count == 7
    assert stats.highest_tile_hist == [(4, 6)]
    assert stats.engine_counts == [("", 2), ("z", 1), ("é", 1), ("\uffff", 1), ("𝄞", 1)]


def test_the_three_forms_of_statistics() -> None:
    stats = stats_of([(1, RUN_V1), (2, RUN_V2)])
    whole = encode_stats(stats)
    fields = Stats(2, 5, 2, 3, 2.5, 3, 3, 3)
    short = encode_stats(fields)
    assert whole.startswith(short)
    forms = {len(short): fields, len(whole) - 4: stats, len(whole): stats}
    for size in range(len(whole) + 1):
        if size in forms:
            assert decode_stats(whole[:size]) == forms[size]
        else:
            with pytest.raises(Broken):
                decode_stats(whole[:size])
    with pytest.raises(Broken):
        decode_stats(whole + b"\0")
    with pytest.raises(BrokenChecksum):
        decode_stats(b"\3" + whole[1:])


# What the page refuses.


WITH_ALL = write_pack([HELLO, Entry(16, b"stored", LZ4, 9)], 32, stats_of([(16, b"")]), b"words")


# Where a flip makes the last pair of the statistics swallow their CRC: no CRC, so nothing to find.
SWALLOWED = [8 * 401, 8 * 416 + 7]


@pytest.mark.parametrize(
    ("whole", "unseen"),
    [(WHOLE_V1, SWALLOWED), (WHOLE_V2, []), (WITH_ALL, [])],
    ids=["v1", "v2", "all"],
)
def test_every_other_flip_is_found_by_verify(whole: bytes, unseen: list[int]) -> None:
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        if bit in unseen:
            assert read_pack(bytes(data), verify=True).entries == read_pack(whole).entries
        else:
            with pytest.raises(Broken):
                read_pack(bytes(data), verify=True)


def test_a_gap_is_refused() -> None:
    """Bytes that no part explains: between index and data, between payloads, before the footer."""
    entries = [Entry(16, bytes(8)), Entry(16, bytes(4)), Entry(16, bytes(8))]
    tight = write_pack(entries, 4)  # the index ends at 124
    assert read_pack(tight).offsets == [124, 132, 136]
    for at, moved in [(124, (0, 1, 2)), (132, (1, 2)), (136, (2,))]:
        data = bytearray(tight[:at] + bytes(4) + tight[at:])
        for i in moved:
            data[28 + 32 * i] += 4
        data[-32] += 4
        with pytest.raises(Broken, match="bytes before it"):
            read_pack(summed(bytes(data)))
    with pytest.raises(Broken, match="expected the footer at 144"):
        read_pack(tight[:144] + bytes(4) + tight[144:])


def test_sums_of_zero_are_not_checked() -> None:
    data = changed(changed(changed(WHOLE_V2, 64, b"J"), 44, bytes(4)), -20, bytes(4))
    assert read_pack(data, verify=True).entries == [Entry(16, b"Jello")]


def test_a_changed_dictionary_is_refused() -> None:
    data = write_pack([Entry(16, b"x", ZSTD_DICTIONARY, 9)], 8, None, b"words")
    assert read_pack(data).dictionary == b"words"
    with pytest.raises(BrokenChecksum, match="dictionary"):
        read_pack(data[:-33] + b"t" + data[-32:])
    with pytest.raises(Broken, match="dictionary: expected at most"):
        read_pack(data.replace(b"\5\0\0\0", b"\6\0\0\0"))


# JSONL.


def test_the_lines_of_the_page() -> None:
    v1, v2 = runs.decode(RUN_V1), runs.decode(RUN_V2)
    lines = runs.block(PAGE, "jsonl", "runs").splitlines()
    assert lines == [run_line(0, v1), run_line(1, v2)]
    assert runs.block(PAGE, "jsonl", "runs-hex").splitlines() == [run_line(0, v1, hex_boards=True)]
    lines = runs.block(PAGE, "jsonl", "steps").splitlines()
    assert lines == [*step_lines(0, RUN_V1), *step_lines(1, RUN_V2)]


def test_keys_stand_in_order() -> None:
    record = json.loads(run_line(0, runs.decode(RUN_V1)))
    head = ["run_idx", "steps", "start_unix_s", "elapsed_s", "max_score", "highest_tile"]
    assert list(record) == [*head, "final_board", "states", "moves", "engine", "branches"]
    record = json.loads(next(step_lines(0, RUN_V1)))
    head = ["run_idx", "run_uuid", "step_idx", "pre_board"]
    assert list(record) == [*head, "chosen", "branches"]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_are_short_and_exact(value: float) -> None:
    text = Number(value).text()
    assert np.float32(text) == np.float32(value)
    assert isinstance(json.loads(text), float)
    # Plain unless the exponent is shorter, and then `.0` behind a whole number.
    assert len(text) <= len(np.format_float_scientific(np.float32(value), exp_digits=2)) + 2


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
