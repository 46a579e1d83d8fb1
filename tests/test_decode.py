"""Steps of 2048 as a network wants them, against NumPy that does it plainly."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stepwell as sw
from stepwell import game2048 as g
from stepwell.game2048.decode import SYMMETRIES
from stepwell.source import Batch

COUNTS = [0, 1, 7, 1023, 1024, 1025, 5000]  # the core works in pieces of 1,024


def random_steps(count: int, seed: int = 0) -> NDArray[Any]:
    """Steps that no game has: any board, any move, any mask, values where none belong."""
    random = np.random.default_rng(seed)
    steps = np.zeros(count, g.STEP)
    steps["board"] = random.integers(0, 2**64, count, np.uint64)
    steps["move"] = random.integers(0, 4, count)
    steps["ev_legal"] = random.integers(0, 16, count)
    steps["ev_values"] = random.random((count, 4))
    steps["ev_values"][random.random((count, 4)) < 0.1] = np.nan  # not recorded
    steps["run_id"] = random.integers(0, 2**32, count)
    steps["step_index"] = random.integers(0, 2**16, count)
    return steps


def as_batch(steps: NDArray[Any]) -> Batch:
    return {name: np.ascontiguousarray(steps[name]) for name in steps.dtype.names or ()}


# The same in NumPy: a board is a square, a symmetry is what its definition says.


def turn_cells(cells: NDArray[np.uint8], symmetry: int) -> NDArray[np.uint8]:
    square = cells.reshape(-1, 4, 4)
    if symmetry & 4:
        square = square.transpose(0, 2, 1)
    if symmetry & 1:
        square = square[:, :, ::-1]
    if symmetry & 2:
        square = square[:, ::-1]
    return square.reshape(-1, 16)


def turn_move(move: int, symmetry: int) -> int:
    """Where a move goes: follow its arrow, (rows down, columns right), through the symmetry."""
    down, right = {g.UP: (-1, 0), g.DOWN: (1, 0), g.LEFT: (0, -1), g.RIGHT: (0, 1)}[move]
    if symmetry & 4:
        down, right = right, down
    if symmetry & 1:
        right = -right
    if symmetry & 2:
        down = -down
    return {(-1, 0): g.UP, (1, 0): g.DOWN, (0, -1): g.LEFT, (0, 1): g.RIGHT}[down, right]


def plain_decode(steps: NDArray[Any], symmetries: NDArray[np.integer[Any]]) -> Batch:
    cells = np.array(
        [[int(board) >> (60 - 4 * i) & 15 for i in range(16)] for board in steps["board"]],
        np.uint8,
    ).reshape(-1, 16)
    moves = np.zeros(len(steps), np.uint8)
    legal = np.zeros((len(steps), 4), np.bool)
    values = np.zeros((len(steps), 4), np.float32)
    known = np.zeros((len(steps), 4), np.bool)
    for i, (step, symmetry) in enumerate(zip(steps, symmetries.tolist(), strict=True)):
        cells[i] = turn_cells(cells[i], symmetry)[0]
        moves[i] = turn_move(int(step["move"]), symmetry)
        for move in range(4):
            if step["ev_legal"] >> move & 1:
                legal[i, turn_move(move, symmetry)] = True
                if not np.isnan(value := step["ev_values"][move]):
                    known[i, turn_move(move, symmetry)] = True
                    values[i, turn_move(move, symmetry)] = value
    legality = {"ev_legal": legal, "ev_known": known, "ev_values": values}
    return {"board": cells, "move": moves, **legality}


def assert_batches(got: Batch, want: Batch) -> None:
    for name, values in want.items():
        assert got[name].dtype == values.dtype
        np.testing.assert_array_equal(got[name], values, err_msg=name)


@pytest.mark.parametrize("count", COUNTS)
def test_exponents_masks_and_values(count: int) -> None:
    steps = random_steps(count, seed=count)
    batch = as_batch(steps)
    before = {name: values.copy() for name, values in batch.items()}
    got = sw.game2048.decode(batch)
    assert_batches(got, plain_decode(steps, np.zeros(count, np.int64)))
    assert got["run_id"] is batch["run_id"]
    assert got["step_index"] is batch["step_index"]
    assert set(got) == {*batch, "ev_known"}
    assert_batches(batch, before)  # what was given is left alone


@pytest.mark.parametrize("count", COUNTS)
def test_one_hot_is_the_exponents_as_classes(count: int) -> None:
    batch = as_batch(random_steps(count, seed=count))
    symmetries = np.arange(count) % SYMMETRIES
    got = g.decode(batch, boards="one_hot", symmetries=symmetries)
    cells = g.decode(batch, symmetries=symmetries)
    assert_batches(got, {**cells, "board": np.eye(16, dtype=np.float32)[cells["board"]]})


@pytest.mark.parametrize("count", COUNTS)
def test_every_step_has_its_own_symmetry(count: int) -> None:
    steps = random_steps(count, seed=count)
    symmetries = np.random.default_rng(count).integers(0, SYMMETRIES, count)
    assert_batches(
        g.decode(as_batch(steps), symmetries=symmetries), plain_decode(steps, symmetries)
    )
    one: list[Any] = [3, np.uint8(3)]
    for for_all in one:
        want = plain_decode(steps, np.full(count, 3))
        assert_batches(g.decode(as_batch(steps), symmetries=for_all), want)


@pytest.mark.parametrize(("symmetry", "move"), [*product(range(SYMMETRIES), range(4))])
def test_turning_and_moving_is_moving_and_turning(symmetry: int, move: int) -> None:
    steps = random_steps(2000, seed=move)
    steps["board"][::2] &= np.uint64(0x1212_2121_1122_2211)  # many merges, many gaps
    steps["move"] = move

    def turned(boards: NDArray[np.uint64]) -> NDArray[np.uint64]:
        batch = as_batch(steps) | {"board": boards}
        return np.asarray(g.from_exponents(g.decode(batch, symmetries=symmetry)["board"]))

    became = g.decode(as_batch(steps), symmetries=symmetry)["move"]
    boards = steps["board"].copy()
    np.testing.assert_array_equal(turned(g.move(boards, move)), g.move(turned(boards), became))


def test_windows_are_decoded_step_by_step() -> None:
    batch = as_batch(random_steps(60))
    windows = {name: values.reshape(12, 5, *values.shape[1:]) for name, values in batch.items()}
    symmetries = np.arange(60) % SYMMETRIES
    kinds: list[Any] = ["exponents", "one_hot"]
    for boards in kinds:
        flat = g.decode(batch, boards=boards, symmetries=symmetries)
        got = g.decode(windows, boards=boards, symmetries=symmetries.reshape(12, 5))
        assert_batches(
            got, {name: values.reshape(12, 5, *values.shape[1:]) for name, values in flat.items()}
        )
    decoder = g.Decode(augment=True)
    np.testing.assert_array_equal(
        decoder(windows)["board"].reshape(60, 16), decoder(batch)["board"]
    )


def test_columns_need_not_be_contiguous() -> None:
    steps = random_steps(1000)
    views: Batch = {name: steps[name][::-3] for name in g.STEP.names or ()}
    assert_batches(g.decode(views), plain_decode(steps[::-3], np.zeros(334, np.int64)))


# What is refused.


@pytest.mark.parametrize("name", ["board", "move", "ev_legal", "ev_values"])
def test_a_field_that_is_missing_or_of_another_kind(name: str) -> None:
    batch = as_batch(random_steps(5))
    without = {other: values for other, values in batch.items() if other != name}
    with pytest.raises(KeyError, match=f"a field '{name}'"):
        g.decode(without)
    with pytest.raises(TypeError, match=f"{name}: expected .*, got float64"):
        g.decode({**batch, name: batch[name].astype(np.float64)})
    if name != "board":
        with pytest.raises(ValueError, match=rf"{name}: expected the shape \(5,"):
            g.decode({**batch, name: batch[name][:4]})


@pytest.mark.parametrize("name", ["run_id", "step_index"])
def test_augmentation_needs_to_know_which_step_it_is(name: str) -> None:
    batch = as_batch(random_steps(5))
    del batch[name]
    assert len(g.Decode()(batch)["board"]) == 5
    with pytest.raises(KeyError, match=f"a field '{name}'"):
        g.Decode(augment=True)(batch)


def test_a_move_that_is_none() -> None:
    steps = random_steps(2000)
    steps["move"][[1500, 1700]] = 4, 255
    with pytest.raises(ValueError, match="move 1500: expected 0 to 3, got 4"):
        g.decode(as_batch(steps))


@pytest.mark.parametrize(
    ("symmetries", "error", "match"),
    [
        *((bad, ValueError, "expected 0 to 7, got") for bad in (8, [0, 1, 2, 3, -1])),
        *((bad, TypeError, "expected whole numbers, got") for bad in (True, np.zeros(5))),
        *((bad, ValueError, r"expected one or \(5,\), got") for bad in ([1, 2], [[1] * 5])),
    ],
)
def test_a_symmetry_that_is_none(symmetries: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=f"symmetries: {match}"):
        g.decode(as_batch(random_steps(5)), symmetries=symmetries)


def test_boards_of_another_kind() -> None:
    with pytest.raises(ValueError, match="expected 'exponents' or 'one_hot', got 'planes'"):
        g.decode(as_batch(random_steps(5)), boards="planes")  # type: ignore[arg-type]


# As a transform.


def many_steps(count: int) -> NDArray[Any]:
    steps = random_steps(count)
    steps["run_id"], steps["step_index"] = np.divmod(np.arange(count), 300)
    return steps


def drawn(batch: Batch, **options: Any) -> NDArray[np.integer[Any]]:
    """The symmetry of each step of a board on which all eight are different."""
    board = np.uint64(0x0123_4567_89AB_CDEF)
    batch = {**batch, "board": np.full(len(batch["run_id"]), board)}
    cells = g.Decode(augment=True, **options)(batch)["board"]
    corners = cells[:, [0, 3]].astype(np.int64) @ [16, 1]
    base = np.arange(16, dtype=np.uint8)
    names = {int(turn_cells(base, s)[0, [0, 3]].astype(np.int64) @ [16, 1]): s for s in range(8)}
    return np.array([names[int(corner)] for corner in corners])


def test_a_draw_depends_on_seed_epoch_run_and_step_alone() -> None:
    batch = as_batch(many_steps(3000))
    order = np.random.default_rng(1).permutation(3000)
    shuffled = {name: values[order] for name, values in batch.items()}
    first = drawn(batch, seed=3, epoch=4)
    np.testing.assert_array_equal(drawn(shuffled, seed=3, epoch=4), first[order])
    np.testing.assert_array_equal(drawn(batch, seed=3, epoch=4), first)
    other = {**batch, "ev_values": batch["ev_values"][::-1]}
    np.testing.assert_array_equal(drawn(other, seed=3, epoch=4), first)
    for changed in (
        drawn(batch, seed=4, epoch=4),
        drawn(batch, seed=3, epoch=5),
        drawn({**batch, "run_id": batch["run_id"] + np.uint32(1)}, seed=3, epoch=4),
        drawn({**batch, "step_index": batch["step_index"] + np.uint16(1)}, seed=3, epoch=4),
    ):
        assert 0.05 < (changed == first).mean() < 0.2  # one in eight by chance


def test_draws_are_uniform_for_every_run_step_and_epoch() -> None:
    count = 48_000
    batch = as_batch(many_steps(count))
    for epoch in range(4):
        draws = drawn(batch, seed=9, epoch=epoch)
        # 7 degrees of freedom: above 30 in one of ten thousand, for draws by chance.
        chi = ((np.bincount(draws, minlength=8) - count / 8) ** 2 / (count / 8)).sum()
        assert chi < 30
        # Beside one another in a run, or at the same step of two runs: no relation.
        for apart in (1, 2, 300, 600):
            pairs = np.bincount(draws[apart:] * 8 + draws[:-apart], minlength=64)
            expected = (count - apart) / 64
            assert ((pairs - expected) ** 2 / expected).sum() < 130  # 63 degrees of freedom


def test_a_loader_turns_steps_another_way_in_each_epoch() -> None:
    """Also those that were prefetched while the epoch before was still being handed over."""
    steps = many_steps(1200)
    transform = g.Decode(augment=True, seed=2)
    with sw.Loader(steps, 400, seed=1, prefetch=8, threads=2, transform=transform) as loader:
        epochs = [list(loader) for _ in range(3)]
    plain = sw.Loader(steps, 400, seed=1)
    for epoch, batches in enumerate(epochs):
        for batch, raw in zip(batches, plain, strict=True):
            assert_batches(batch, g.Decode(augment=True, seed=2, epoch=epoch)(raw))


def test_a_resumed_loader_turns_steps_the_same_way() -> None:
    steps = many_steps(1200)

    def loader(batch_size: int = 100) -> sw.Loader:
        return sw.Loader(steps, batch_size, seed=1, transform=g.Decode(augment=True, seed=2))

    whole = loader()
    stream = whole.forever()
    for _ in range(17):
        next(stream)
    resumed = loader()
    resumed.load_state_dict(whole.state_dict())
    for batch, want in zip(resumed, stream, strict=False):
        assert_batches(batch, want)
