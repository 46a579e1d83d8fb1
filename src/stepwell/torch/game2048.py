"""Steps of 2048 as a network wants them, for tensors: `stepwell.game2048.decode` on any device.

A few operations of torch for a whole batch. Called inside a step that is compiled or captured as a
CUDA graph, they cost no launch of their own.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch

from stepwell.game2048.decode import SYMMETRIES, Boards, Decode as HostDecode
from stepwell.torch.tensors import Tensors

_MASK = (1 << 64) - 1


def exponents(boards: torch.Tensor) -> torch.Tensor:
    """The 16 exponents of each board, top left first, as uint8 along a new last axis."""
    shifts = torch.arange(60, -1, -4, device=boards.device)
    return ((_bits(boards)[..., None] >> shifts) & 15).to(torch.uint8)


def one_hot(boards: torch.Tensor) -> torch.Tensor:
    """Each board as 16 cells of 16 classes, float32."""
    classes = torch.arange(16, device=boards.device, dtype=torch.uint8)
    return (exponents(boards)[..., None] == classes).to(torch.float32)


def turned(boards: torch.Tensor, symmetries: torch.Tensor) -> torch.Tensor:
    """The boards, as int64, each turned by a symmetry, 0 to 7."""
    board = _bits(boards)
    board = torch.where(symmetries & 4 != 0, _transposed(board), board)
    board = torch.where(symmetries & 1 != 0, _mirrored(board), board)
    return torch.where(symmetries & 2 != 0, _upside_down(board), board)


def decode(
    batch: Tensors,
    *,
    boards: Boards = "exponents",
    symmetries: torch.Tensor | int | None = None,
) -> Tensors:
    """Return the batch with `board`, `move`, `ev_legal`, `ev_values` and `ev_known` made ready.

    They are what `stepwell.game2048.decode` makes, to the bit. Moves and symmetries that are out of
    range raise `ValueError` on the CPU only: on another device, to look at them would have the
    step wait. Raises `KeyError`, `TypeError` or `ValueError` naming the field that is not one of
    2048.
    """
    if boards not in ("exponents", "one_hot"):
        raise ValueError(f"boards: expected 'exponents' or 'one_hot', got {boards!r}")
    board = _column(batch, "board", (torch.uint64, torch.int64))
    shape = tuple(board.shape)
    move = _column(batch, "move", (torch.uint8,), shape)
    legal = _column(batch, "ev_legal", (torch.uint8,), shape)
    values = _column(batch, "ev_values", (torch.float32,), (*shape, 4))
    _check("move", move, 3)
    legal = (legal[..., None] >> torch.arange(4, device=legal.device, dtype=torch.uint8)) & 1 != 0
    if symmetries is not None:
        turns = torch.as_tensor(symmetries, device=board.device)
        if turns.is_floating_point() or turns.dtype == torch.bool:
            raise TypeError(f"symmetries: expected whole numbers, got {turns.dtype}")
        if tuple(turns.shape) not in ((), shape):
            raise ValueError(f"symmetries: expected one or {shape}, got {tuple(turns.shape)}")
        turns = turns.to(torch.int64).expand(shape)
        _check("symmetries", turns, SYMMETRIES - 1)
        board = turned(board, turns)
        moves, origins = _turns(board.device)
        move = moves[turns, move.long()]
        legal, values = (each.gather(-1, origins[turns]) for each in (legal, values))
    known = legal & ~values.isnan()
    values = torch.where(known, values, torch.zeros_like(values))
    cells = one_hot(board) if boards == "one_hot" else exponents(board)
    ready = {"board": cells, "move": move, "ev_legal": legal}
    return {**batch, **ready, "ev_known": known, "ev_values": values}


@dataclass(frozen=True)
class Decode:
    """`decode` as the transform of a loader whose rows are on the device; draws are the host's.

    It is what `stepwell.game2048.Decode` with the same options is to a loader of NumPy's arrays.
    """

    boards: Boards = "exponents"
    augment: bool = False
    seed: int = 0
    epoch: int = 0

    def __call__(self, batch: Tensors) -> Tensors:
        symmetries = self._draw(batch) if self.augment else None
        return decode(batch, boards=self.boards, symmetries=symmetries)

    def in_epoch(self, epoch: int) -> "Decode":
        """The same with the draws of another epoch."""
        return replace(self, epoch=epoch)

    def _draw(self, batch: Tensors) -> torch.Tensor:
        runs = _column(batch, "run_id", (torch.int64,))
        steps = _column(batch, "step_index", (torch.int32, torch.int64))
        return drawn(runs, steps, self.seed, self.epoch)


def drawn(runs: torch.Tensor, steps: torch.Tensor, seed: int, epoch: int) -> torch.Tensor:
    """The symmetry of each step, as `Decode` draws them on the host."""
    bits = (runs << 32) + steps ^ _signed(HostDecode(seed=seed, epoch=epoch).key)
    for shift, factor in HostDecode.MIX:
        bits = (bits ^ _shifted(bits, shift)) * _signed(factor)
    return _shifted(bits, 61)


def _bits(boards: torch.Tensor) -> torch.Tensor:
    """torch shifts no uint64: the same bits as int64."""
    if boards.dtype not in (torch.uint64, torch.int64):
        raise TypeError(f"board: expected uint64 or int64, got {boards.dtype}")
    return boards.view(torch.int64)


def _signed(bits: int) -> int:
    bits &= _MASK
    return bits - (1 << 64) if bits >> 63 else bits


def _shifted(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Shifted right, zeros behind: int64 would bring its sign along."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _swapped(board: torch.Tensor, low: int, count: int) -> torch.Tensor:
    """The bits that `low` has, exchanged with those `count` above them; others become 0."""
    return (board & low) << count | (_shifted(board, count) & low)


def _mirrored(board: torch.Tensor) -> torch.Tensor:
    return _swapped(_swapped(board, 0x0F0F0F0F0F0F0F0F, 4), 0x00FF00FF00FF00FF, 8)


def _upside_down(board: torch.Tensor) -> torch.Tensor:
    return _swapped(_swapped(board, 0x0000FFFF0000FFFF, 16), 0x00000000FFFFFFFF, 32)


def _transposed(board: torch.Tensor) -> torch.Tensor:
    # Cells beside the diagonal, then squares of four: what is above goes below, and back.
    stay = board & _signed(0xF0F00F0FF0F00F0F)
    up, down = board & 0x0000F0F00000F0F0, board & 0x0F0F00000F0F0000
    board = stay | up << 12 | _shifted(down, 12)
    stay = board & _signed(0xFF00FF0000FF00FF)
    up, down = board & 0x00000000FF00FF00, board & 0x00FF00FF00000000
    return stay | up << 24 | _shifted(down, 24)


@cache
def _turns(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """What each move becomes by each symmetry, and which move became it."""
    moves = torch.empty((SYMMETRIES, 4), dtype=torch.uint8)
    for symmetry in range(SYMMETRIES):
        for move in range(4):
            to = move ^ 2 if symmetry & 4 else move
            moves[symmetry, move] = to ^ 1 if symmetry & (1 if to >= 2 else 2) else to
    return moves.to(device), moves.argsort(1).to(device)


def _check(name: str, values: torch.Tensor, limit: int) -> None:
    if values.device.type == "cpu" and values.numel():
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > limit:
            got = low if low < 0 else high
            raise ValueError(f"{name}: expected 0 to {limit}, got {got}")


def _column(
    batch: Tensors,
    name: str,
    dtypes: tuple[torch.dtype, ...],
    shape: tuple[int, ...] | None = None,
) -> torch.Tensor:
    if name not in batch:
        raise KeyError(f"a step of 2048 has a field {name!r}; this batch has {sorted(batch)}")
    values = torch.as_tensor(batch[name])
    if values.dtype not in dtypes:
        wanted = " or ".join(map(str, dtypes))
        raise TypeError(f"{name}: expected {wanted}, got {values.dtype}")
    if shape is not None and tuple(values.shape) != shape:
        raise ValueError(f"{name}: expected the shape {shape}, got {tuple(values.shape)}")
    return values
