"""The compiled core. Every function that takes long releases the GIL."""

from collections.abc import Callable, Sequence
import os
from typing import Annotated, Any

import numpy
from numpy.typing import NDArray


def usable_cores() -> int:
    """
    Cores this process may use: the smaller of its affinity and its cgroup quota.
    """

def crc32c(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], crc: int = 0) -> int:
    """CRC32C of `data`, continuing from `crc`."""

def crc32c_portable(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], crc: int = 0) -> int:
    """The same, without the processor's instruction."""

def checksum_values(rows: list[tuple[object, ...]], count: int) -> list[int]:
    """
    CRC32C of the first `count` values of each row: None, numbers, text, bytes.
    """

def stream_checksums(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], block_bytes: int, inside: int = 0, crc: int = 0) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """
    The CRC32C of each block of `data`, 4 bytes each; the first has `inside` bytes already, of checksum `crc`.
    """

class CheckedBlocks:
    """Bytes of a file, whose blocks are checked the first time they are met."""

    def __init__(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], block_bytes: int, stored: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], rest: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], path: object, begin: int, checksum_path: object, inside: int = 0, crc: int = 0) -> None: ...

    @property
    def is_done(self) -> bool:
        """Whether every block has been checked."""

    def check(self, begin: int, end: int) -> None:
        """
        Check the blocks of some bytes. Raises ChecksumError with path and offset.
        """

    def check_all(self) -> None:
        """The same for all, by all cores."""

    def checksum(self, begin: int, end: int, crc: int = 0) -> int:
        """
        The CRC32C of some bytes, continued from `crc`; of a file that someone may cut.
        """

class BlockPool:
    """Memory for batches, reused when the last array over it dies."""

    def __init__(self, keep_bytes: int) -> None: ...

    def take(self, bytes: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """A block of at least this size, its content unspecified."""

    @property
    def idle_bytes(self) -> int: ...

def shared_blocks() -> BlockPool:
    """The pool that `take` uses."""

def allocate(bytes: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """Fresh memory on huge pages, its content unspecified."""

def load(file: int, path: str | bytes | os.PathLike[str], offset: int, out: NDArray[numpy.uint8], blocks: CheckedBlocks | None = None, at: int = 0) -> None:
    """
    Part of an open file, read into `out` by all cores; `path` is for messages. With the checksums of the
    memory that `out` is part of, from byte `at` on, they are compared meanwhile.
    Raises FormatError when it ends early.
    """

def begin_writeback(file: int, offset: int, bytes: int) -> None:
    """Begin to write part of an open file to the disk, without waiting."""

class Order:
    """The rows of every epoch, as a function of position."""

    @property
    def length(self) -> int:
        """Positions in one epoch."""

    @property
    def lanes(self) -> int:
        """Neighbouring positions that read different blocks."""

    def rows(self, epoch: int, start: int, count: int, stride: int = 1) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """The rows at `count` positions from `start` on, every stride-th."""

def shuffle_order(count: int, seed: int) -> Order: ...

def block_order(count: int, seed: int, block: int, group: int, lanes: int = 1) -> Order: ...

def sequential_order(count: int, window: int, stride: int) -> Order: ...

def iid_order(count: int, seed: int) -> Order: ...

def weighted_order(cumulative: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], seed: int) -> Order: ...

class RowMap:
    """How the rows of a view become rows of its base."""

    @property
    def length(self) -> int: ...

    @property
    def width(self) -> int:
        """Base rows for each view row."""

    def apply(self, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

def index_map(index: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> RowMap: ...

def range_map(starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], counts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], step: int = 1, width: int = 1) -> RowMap: ...

def check_rows(rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], length: int) -> None:
    """Raise IndexError naming the first row outside range(length)."""

class Reader:
    """A source that can be read without Python."""

    @property
    def length(self) -> int: ...

    def layout(self, count: int) -> list[int]:
        """
        Where each field begins in a block of `count` rows, and the block's size.
        """

    def take(self, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """The rows in a block of the shared pool, laid out by `layout`."""

    def read(self, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], outs: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]]) -> None:
        """The rows into the caller's memory."""

def table_reader(rows: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), device='cpu', writable=False)], fields: Sequence[tuple[int, int]], path: object | None = None, begin: int = 0) -> Reader:
    """
    Fields, as (offset, bytes), of the rows of a two-dimensional byte array; with a path, of the memory of
    that file from byte `begin` on, which someone may cut: an error, not the end of the process.
    """

def bounded_reader(base: Reader, maps: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], budget: int) -> Reader:
    """
    The same rows, read out of mapped files with about `budget` bytes of them resident.
    """

class Residents:
    """Mapped files, of which those that were read last are resident."""

    def __init__(self, count: int) -> None: ...

    def add(self, map: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """A further file; they are numbered from 0 on."""

def resident_reader(base: Reader, residents: Residents, map: int) -> Reader:
    """The same rows, read out of one of these mapped files."""

def guarded_reader(file: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offset: int, rows: int, row_bytes: int, path: object, begin: int = 0) -> Reader:
    """
    Rows of a mapped file that someone may cut: an error, not the end of the process. The memory is that of the file from byte `begin` on.
    """

def checked_reader(base: Reader, blocks: CheckedBlocks, stride: int, from_: int, to: int) -> Reader:
    """
    The same rows, of `stride` bytes, checked when their blocks are first met; of bytes `from_` to `to`.
    """

class Cold:
    """Whether reads of a store's mapped files have met the disk lately."""

    def __init__(self) -> None: ...

    @property
    def is_cold(self) -> bool: ...

def cold_reader(base: Reader, memory: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], stride: int, from_: int, to: int, cold: Cold, blocks: CheckedBlocks | None = None) -> Reader:
    """
    The same rows, of `stride` bytes in a mapped file: what is not in memory of bytes `from_` to `to` of them is asked of
    the disk many rows at a time.
    """

def mapped_reader(base: Reader, map: RowMap) -> Reader: ...

def concat_reader(parts: Sequence[Reader]) -> Reader: ...

def join_reader(parts: Sequence[Reader]) -> Reader: ...

def widened_reader(base: Reader, widths: Sequence[tuple[int, int, bool]]) -> Reader:
    """
    The same rows with wider whole numbers: (bytes, wider bytes, whether there is a sign) for each field.
    """

class Layout:
    """The fields of a reader as a dict of arrays over one block."""

    def __init__(self, reader: Reader, fields: Sequence[tuple[str, numpy.dtype, tuple[int, ...]]]) -> None:
        """Name, dtype and shape of a row of each field."""

    def take(self, rows: NDArray[numpy.int64]) -> dict[str, NDArray[Any]]:
        """These rows, in a block of the shared pool."""

    def read(self, rows: NDArray[numpy.int64], out: object) -> dict[str, NDArray[Any]] | None:
        """
        These rows in the caller's arrays, by name; None when these are not as `take` would make them.
        """

def decode_2048(boards: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], moves: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], legal: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], symmetries: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], cells: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], one_hot: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], out_moves: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], out_legal: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], out_known: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], out_values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Steps as a network wants them, into the caller's arrays; of cells and one_hot one is empty.
    """

def check_entries(file: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], entries: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], numbers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], path: object, threads: int) -> None:
    """
    Raises ChecksumError for the first entry whose bytes are not those written.
    """

def checksums_of(file: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], entries: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], numbers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], path: object) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """The CRC32C of each entry's bytes."""

def copy_payloads(file: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], entries: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], numbers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], path: object, threads: int) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]:
    """
    The entries' bytes one after another: where each begins, and all of them.
    """

class Slices:
    """Payloads of a mapped file, one at a time."""

    def __init__(self, file: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], view: object, begins: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], checksums: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Where each begins (-1: not stored as it is) and ends, and its checksum (0: not compared); `view` is what
        slices are taken of.
        """

    def at(self, i: object) -> memoryview | None:
        """
        Entry `i`; None when there is none, it is not stored as it is, or cannot be read as it was written.
        """

def run_kind(payload: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
    """1 or 2: how this run is encoded."""

def decode_runs(file: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], entries: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], numbers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], path: object, threads: int) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))], list[int], Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]:
    """
    Entries decoded: records, offsets of steps and of engine names, where each column begins
    in the block, the block.
    """

def read_heads(file: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], entries: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], numbers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], path: object, threads: int) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))], list[int], Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]:
    """The same without steps and final boards."""

def encode_run(kind: int, numbers: tuple[int, int, int, int], engine: bytes | None, boards: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], moves: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], legal: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], has_branches: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], final_board: int) -> bytes:
    """
    The payload of a run; `numbers` are start_unix_s, the bits of elapsed_s, max_score and
    highest_tile.
    """

def to_jsonl(file: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], entries: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], numbers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], path: object, shape: int, ends: bool, hex: bool) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """
    The lines of these entries. Shapes: 0 a line a run, 1 a line a step, 2 a line a step as seed 001 has it,
    3 none; ends adds a line a run.
    """

class Schedule:
    """Which positions each step of a loop reads, on each rank."""

    def __init__(self, length: int, batch: int, rank: int, world: int, drop_last: bool, epoch: int, position: int, worker: int = 0, workers: int = 1, in_turn: bool = False) -> None: ...

    def steps_from(self, position: int) -> int:
        """Steps from `position` to the end of an epoch."""

    def step(self, n: int) -> tuple[int, int, int, int, int]:
        """
        Epoch, first position, count, global position after it, and stride of step `n`.
        """

class Prefetch:
    """Batches made ahead by native threads, in order."""

    def __init__(self, reader: Reader, order: Order, schedule: Schedule, blocks: BlockPool, threads: int, depth: int) -> None: ...

    def next(self, layout: Layout) -> tuple[dict[str, NDArray[Any]], tuple[int, int, int, int, int]]:
        """The next batch, as the layout of the same reader has it, and its step."""

    @property
    def delivered(self) -> int:
        """Batches that `next` has given so far, those that failed included."""

    def close(self) -> None: ...

class Plan:
    """
    Which units each of the next steps needs, and which step needs a unit next.
    """

    def __init__(self, max_uses: int) -> None: ...

    @property
    def finished(self) -> int:
        """Steps that are over."""

    @property
    def begun(self) -> int:
        """Steps that are over or under way."""

    @property
    def planned(self) -> int: ...

    @property
    def held(self) -> int:
        """Units of steps under way, each counted once."""

    @property
    def has_room(self) -> bool: ...

    @property
    def fresh(self) -> int:
        """Units of the step to begin next that no step under way has."""

    def add(self, units: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """A further step; gives the units that no other planned step has."""

    def units(self, step: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    def begin(self) -> None: ...

    def finish(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """
        The oldest step under way is over; gives the step that needs each of its units next.
        """

class Crossing:
    """A batch on its way to a device."""

    def array(self, bytes: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """The pinned memory that it is to be put into."""

class CudaFeed:
    """Memory that batches cross to a CUDA device in."""

    def __init__(self, device: int, fields: Sequence[tuple[str, int, int, Sequence[int]]], rows: int, together: int, lanes: int, keep: int) -> None:
        """
        For batches of up to `rows`, of which up to `together` have one block and one copy. Fields are names,
        DLPack's code and bits, and the shape of a row; there are `lanes` streams, and `keep` blocks of device
        memory stay when nobody uses them.
        """

    def begin(self, rows: int) -> Crossing:
        """Memory for a batch that is made in Python."""

    def send(self, crossing: Crossing, lane: int) -> None:
        """Begin the copy to the device."""

    def hand_over(self, crossing: Crossing, stream: int | None, make: Callable[[object], Any]) -> dict[str, Any]:
        """The batch, as groups of a loop give theirs."""

    def record_stream(self, address: int, stream: int) -> bool:
        """
        Have the memory of the batch at this address used again behind the work of this stream, too.
        """

    def trim(self) -> None:
        """Free device memory that no batch is in."""

    @property
    def device(self) -> int: ...

    @property
    def together(self) -> int:
        """Batches that cross at once, at most."""

    @property
    def blocks(self) -> int:
        """Blocks of device memory that there are."""

class CudaGroup:
    """
    Batches that came together. Their memory is used again when all are gone.
    """

    @property
    def steps(self) -> list[tuple[int, int, int, int, int]]:
        """The step of each batch."""

    def batch(self, i: int, make: Callable[[object], Any]) -> dict[str, Any]:
        """
        Batch `i`: for each field what `make` makes of a DLPack capsule. Raises what making the batch raised.
        """

    def put(self, i: int, to: int, stream: int) -> None:
        """Have the stream copy batch `i` to another address on the device."""

    def follow(self, stream: int | None) -> None:
        """Have one more stream wait for the batches, and read them."""

class CudaLoop:
    """
    Batches made ahead by native threads that copy them to a CUDA device, in order.
    """

    def __init__(self, feed: CudaFeed, reader: Reader, order: Order, schedule: Schedule, threads: int, depth: int) -> None: ...

    def next(self, stream: int | None) -> CudaGroup:
        """
        The next batches, which `stream` has been made to wait for; their memory is used again behind the work of
        that stream. Without a stream they are there, and their memory is used again when all work of the device has
        ended.
        """

    @property
    def delivered(self) -> int:
        """Batches that `next` has given so far, those that failed included."""

    def close(self) -> None: ...

def move_boards(boards: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], moves: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def legal_moves(boards: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def score_boards(boards: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def highest_tiles(boards: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def boards_to_exponents(boards: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def boards_from_exponents(cells: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def play_game(depth: int, seed: int, game: int) -> tuple[Annotated[NDArray[numpy.uint64], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None, 4))], int]:
    """
    One whole game: boards, moves, legality masks, branch values, final board.
    """

def choose(board: int, depth: int) -> tuple[int, tuple[float, float, float, float], int, tuple[float, float, float, float]]:
    """
    Move (-1 without a legal one), branch values, legality mask, expected values.
    """

def has_codec(codec: int) -> bool:
    """Whether this machine has the library of a codec of record stores."""

class Dictionary:
    """A zstd dictionary."""

    def __init__(self, bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], level: int) -> None: ...

class Chunks:
    """The chunk files of a record store."""

    def __init__(self, folder: object, first: int) -> None: ...

    def map_all(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Map these chunks, those that can be."""

    def memory(self, id: int, end: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """A chunk's bytes, at least `end` of them, not copied."""

class Records:
    """The records of a store, as a reader sees them."""

    def __init__(self, chunks: Chunks, fields: Sequence[tuple[str, int, bool, Dictionary | None, Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], object, object, bool, bool]], control: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], length: int, checksums: bool) -> None: ...

    def entries(self, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], fields: Sequence[int]) -> list[Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]:
        """The entries of these rows, an array of bytes for each field."""

    @property
    def length(self) -> int: ...

    def read_fixed(self, field: int, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], places: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Records of a fixed shape, read into the caller's memory."""

    def read_ragged(self, field: int, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], places: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]:
        """
        Records of any length: where each begins, in items, and the bytes of all.
        """

    def find_problems(self, field: int, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], places: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], limit: int, numbered: bool = False) -> list[tuple[str, str, int, bool]]:
        """
        What is wrong with these records: message, path, offset, whether a checksum differs.
        """

    def copy_frames(self, fields: Sequence[int], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], places: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], numbers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], chunk: int, begin: int) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]:
        """
        The frames of these records under new numbers, for another chunk, and their entries.
        """

def record_reader(records: Records, fields: Sequence[int]) -> Reader:
    """Fields of fixed shape as a source that needs no Python."""

def make_frames(fields: Sequence[tuple[int, int, int, Dictionary | None, Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, int, Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None]], numbers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], chunk: int, begin: int) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]:
    """
    Frames of new records for a place in a chunk, and their entries, field by field.
    """

def find_frames(chunk: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], exact: bool, path: object) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,))], int]:
    """The whole frames in a chunk, 32 bytes each, and the bytes lost."""

def begin_change(control: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], path: object) -> None:
    """Mark the entries as being changed, for readers."""

def end_change(control: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], path: object, commit: int, length: int, boot: int, attributes: int) -> None:
    """Mark the change as done."""

def read_control(control: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], path: object) -> tuple[int, int, int, int, int]:
    """
    Sequence, number of the last commit, length, boot (0 when the checksum differs), and the last commit that set attributes.
    """

def block_checksums(table: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], blocks: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], commits: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], path: object) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """
    The checksums of some blocks of a table; of a column there is a commit for each.
    """

def seals_after(table: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], entry: int, first: int, appended: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], changed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], blocks: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seals: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], commit: int, path: object) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """
    The checksums and commits that blocks of a column have after a change that is not done yet; the first of the blocks have these `seals` now, the others none.
    """

def get_entries(table: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], entries: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], path: object) -> None:
    """Copy the entries of these rows out of a mapped table."""

def put_entries(table: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], entries: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], path: object) -> None:
    """Put entries where these rows have theirs, in a mapped table."""

class StateTables:
    """The mapped tables of a row state."""

    def __init__(self, values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], there: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], checksums: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], row_bytes: int, folder: object) -> None: ...

    def get(self, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """The vectors of these rows, checked; zeros for those without."""

    def put(self, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Write vectors and their checksums."""

    def present(self, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """1 for rows that have something, else 0."""

    def count(self) -> int:
        """How many rows have something."""

class Readahead:
    """Mapped files, brought into memory ahead of a cursor."""

    def __init__(self, stretches: Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], int, int, object, CheckedBlocks | None]], window: int, mapped: bool, begin: int) -> None: ...

    def wait(self, begin: int, end: int) -> None:
        """
        Wait for the bytes up to `end`; those before `begin` may be given back.
        """

class Views:
    """Rows of shards (0 f32, 1 f16) as they are, read ahead of a loop."""

    def __init__(self, stretches: Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], int, int, object, CheckedBlocks | None]], first: int, rows: int, width: int, window: int, kind: int) -> None: ...

    def next(self) -> NDArray[numpy.float32 | numpy.float16]:
        """
        The next `rows` rows of a stretch from row `first` of the first, or those its end leaves: the file's own memory.
        """

class Upcasts:
    """Rows of shards (0 f32, 1 f16, 2 bf16) made float32 or float64."""

    def __init__(self, stretches: Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], int, int, object, CheckedBlocks | None]], first: int, rows: int, width: int, window: int, kind: int, doubles: bool, threads: int) -> None: ...

    def next(self) -> NDArray[numpy.float32 | numpy.float64]:
        """
        The next `rows` rows of a stretch from row `first` of the first, or those its end leaves.
        """

def upcast(kind: int, from_: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], to: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], doubles: bool, threads: int, path: object, begin: int) -> None:
    """
    Floats of a shard (0 f32, 1 f16, 2 bf16) made float32 or float64; those of a file from byte `begin` on.
    """

def map_file(file: int, size: int, path: object) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
    """The memory of an open file, which may then be closed."""

def read_cells(file: int, path: object, codec: int, offsets: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], raw: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], checksums: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], row_bytes: int, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], planes: int = 1) -> None:
    """
    Read payloads of an open file and unpack them side by side into `out`, their planes put together; those marked raw are copied as they are.
    """

def unpack_lzf(packed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Unpack LZF into all of `out`."""

def checksum_each(rows: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], row_bytes: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """CRC32C of each row, as bytes of uint32."""

class LaneWriter:
    """Frames put into shared memory, one after another."""

    def __init__(self, name: object, capacity: int, width: int, height: int, channels: int, pixel_crc: int, metadata_bytes: int) -> None: ...

    @property
    def metadata_bytes(self) -> int: ...

    @property
    def open(self) -> bool:
        """Whether this process may publish."""

    def publish(self, frame: Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)], metadata: bytes, reward: float, rolling_return: float, step_rate_hz: float) -> int:
        """Put a frame into its slot; returns its number."""

    def close(self) -> None:
        """Mark it as closed for readers, and remove the segment."""

class LaneReader:
    """The segment of one writer, read."""

    def __init__(self, name: object) -> None: ...

    @property
    def path(self) -> str: ...

    @property
    def capacity(self) -> int: ...

    @property
    def shape(self) -> tuple[int, int, int]: ...

    @property
    def pixel_crc(self) -> int: ...

    def head(self) -> int:
        """The number of the newest frame; 0: none."""

    def closed(self) -> bool:
        """Whether no frame will come any more."""

    def replaced(self) -> bool:
        """Whether another segment has the name now."""

    def wait(self, head: int, max_s: float) -> None:
        """Wait for a new head, at most `max_s` seconds."""

    def read(self, number: int, pixels: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> tuple[bytes, float, float, float] | None:
        """
        Copy a frame into the caller's memory; metadata and metrics, or None when it is gone.
        """

class PackedRows:
    """Rows as they are to be stored."""

    def __len__(self) -> int: ...

    @property
    def checksums(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """CRC32C of what is stored of each, as bytes of uint32."""

    def raw(self, i: int) -> bool:
        """Whether a row is stored as it is, since it would not become smaller."""

    def stored(self, i: int) -> bytes: ...

    def write(self, function: int, dataset: int, first: int, rank: int, raw_mask: int) -> int:
        """
        Write the rows as chunks `first`, `first` + 1, … of a dataset, by the function whose address this is: H5Dwrite_chunk of the library that the dataset is open in. Returns how many were written: all, or those before the one that it refused.
        """

class RowBuffer:
    """Rows of one size that wait to be written, each under its number."""

    def __init__(self, row_bytes: int, first: int = 0) -> None: ...

    @property
    def row_bytes(self) -> int: ...

    @property
    def kept_bytes(self) -> int:
        """Memory, in use or not."""

    def put(self, row: int, array: object) -> None:
        """
        Copy an array in C order, or an int as an int64. The GIL is kept: whoever lets go of it for some microseconds may wait for milliseconds.
        """

    def reserve(self, rows: int) -> None:
        """Have memory for `rows` more."""

    def release(self, row: int) -> None:
        """Rows before this one are not needed any more."""

    def joined(self, first: int, count: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """A copy of rows, one behind the other."""

    def packed(self, first: int, count: int, codec: int, level: int, planes: int = 1, shared: bool = True) -> PackedRows:
        """
        Rows packed, the planes of each one behind the other, by all cores if `shared`. They must not be released before the result is of no more use.
        """
