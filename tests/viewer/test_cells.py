"""Rows as a table, as they lie or as a loader gives them."""

import io
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import stepwell as sw
from stepwell.viewer.cells import table
from tests.contract import assert_array
from tests.viewer.serving import Viewer, number_of


def test_rows(viewer: Viewer, tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "image": sw.Field("u1", (8, 9)),
        "vector": "<f4",
        "caption": str,
        "data": bytes,
        "tokens": sw.Field("<i4", ragged=True),
        "rare": sw.Field("<i8", optional=True),
    }
    image = np.arange(72, dtype=np.uint8).reshape(8, 9)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    with sw.RecordWriter(tmp_path / "records", fields) as writer:
        writer.append(
            {
                "image": [image, image],
                "vector": [np.nan, 1.5],
                "caption": ["<script>alert(1)</script>", "x" * 10**6],
                "data": [b"\x00\xff" * 50, file.getvalue()],
                "tokens": [np.arange(1000), np.arange(0)],
            }
        )
        writer.append({**_one(image), "rare": [2**60]})
    number = number_of(viewer, tmp_path / "records")
    found = viewer.json(f"/data/{number}/rows")
    assert found["row_ids"] == [0, 1, 2]
    columns = found["columns"]
    assert columns["caption"][0] == "<script>alert(1)</script>"  # JSON; pages never interpret it
    assert len(columns["caption"][1]) == 2001
    assert columns["vector"] == ["nan", 1.5, 0.0]
    assert columns["rare"] == [None, None, str(2**60)]
    assert columns["data"][0].startswith("100 bytes: 00ff")
    assert columns["tokens"][0] == {
        "values": list(range(256)),
        "shape": [1000],
        "more": True,
    }
    for cell in (columns["image"][0], columns["data"][1]):
        kind, _, data = cell["image"].partition(",")
        assert kind == "data:image/png;base64"
        assert len(data) > 50
    assert viewer.json(f"/data/{number}/rows", rows="2,0,2")["row_ids"] == [2, 0, 2]
    assert viewer.json(f"/data/{number}/rows", start=2, count=10**6)["row_ids"] == [2]
    assert viewer.json(f"/data/{number}/rows", start=3)["row_ids"] == []
    assert "row 3 is outside a record store of 3 rows" in viewer.error(
        f"/data/{number}/rows", 400, rows="1,3"
    )
    assert "rows: expected a whole number" in viewer.error(f"/data/{number}/rows", 400, rows="1,,2")
    many = ",".join(["1"] * 201)
    assert "at most 200 rows" in viewer.error(f"/data/{number}/rows", 400, rows=many)


def _one(image: NDArray[Any]) -> dict[str, Any]:
    return {
        "image": [image],
        "vector": [0.0],
        "caption": [""],
        "data": [b"\x89PNG\r\n\x1a\n and no more"],
        "tokens": [np.arange(3)],
    }


def test_a_batch_is_that_of_the_loader(viewer: Viewer, folder: Path) -> None:
    number = number_of(viewer, folder / "steps")
    with sw.open(folder / "steps") as store:
        loader = sw.Loader(store, 64, seed=7)
        steps = len(loader)
        batches = [batch["big"] for _ in range(2) for batch in loader]
        assert len(batches) == 2 * steps
        for step, want in enumerate(batches):
            found = viewer.json(f"/data/{number}/rows", seed=7, step=step, batch=64)
            assert found["padding"] == 64 - len(want)
            assert_array(store["big"][found["row_ids"]], want)


def test_a_large_record_is_never_sent_whole(viewer: Viewer, tmp_path: Path) -> None:
    """Of 100 MB: bytes, text and a picture."""
    size = 100_000_000
    fields: dict[str, Any] = {"data": bytes, "text": str, "image": sw.Field("u1", (1000, 100_000))}
    with sw.RecordWriter(tmp_path / "records", fields) as writer:
        image = np.zeros((1, 1000, 100_000), "u1")
        writer.append({"data": [bytes(size)], "text": ["x" * size], "image": image})
    answer = viewer.get(f"/data/{number_of(viewer, tmp_path / 'records')}/rows")
    assert answer.status_code == 200
    assert len(answer.content) < 20_000
    assert answer.json()["columns"]["data"][0].startswith("100,000,000 bytes")


def test_a_large_step_is_never_sent_whole(viewer: Viewer, tmp_path: Path) -> None:
    fields = [("image", "u1", (10_000, 10_000)), ("vector", "<f4", (10**6,))]
    with sw.StepWriter(tmp_path / "steps", fields, columns={}) as writer:
        writer.append(
            {"image": np.zeros((2, 10_000, 10_000), "u1"), "vector": np.zeros((2, 10**6))}
        )
    number = number_of(viewer, tmp_path / "steps")
    assert viewer.json(f"/data/{number}/run", key=0)["chunk"] == 1
    answer = viewer.get(f"/data/{number}/chunk", key=0, start=0, count=2)
    assert len(answer.content) < 20_000


def test_what_was_read_is_let_go_before_more_is(tmp_path: Path) -> None:
    """Of rows that may be large one is in memory at a time."""
    held: list[weakref.ref[Any]] = []

    class Large(sw.RecordReader):
        def take(self, rows: Any, out: Any = None) -> Any:
            assert [each for each in held if each() is not None] == []
            batch = super().take(rows, out)
            held.append(weakref.ref(batch["tokens"].values.base))
            return batch

    with sw.RecordWriter(tmp_path / "records", {"tokens": sw.Field("<i4", ragged=True)}) as writer:
        writer.append({"tokens": [np.arange(n) for n in range(5)]})
    found = table(Large(tmp_path / "records"), range(5))
    assert [each["shape"] for each in found["columns"]["tokens"]] == [[n] for n in range(5)]
    assert len(held) == 5
