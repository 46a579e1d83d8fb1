"""Does the GPU wait? Training steps fed in every way, against a batch that is on the GPU already.

All ways in one run, in short turns, each beside one on a kept batch. *Waiting* is the share of a
step that is there only because of the data: one minus the step on a kept batch over the step on new
ones, of two neighbours, the median of all. The kept batch against itself is measured like the
others: so much a machine moves by itself.

Needs a GPU, so it is not part of `make bench`: run it there with `--json FILE`, and
`python -m benchmarks.report --only cuda --cases FILE` puts it into docs/performance.md.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stepwell as sw
from benchmarks import machine
from benchmarks.results import Case, Measured, Target, arguments, publish
from benchmarks.rows import FIELDS, ROW

_BATCH = 4096
_TWO = ["board", "ev_values"]
_STEPS = 64
"""Steps of a turn: more than are made ahead, and short beside what else moves on a machine."""

_KEPT = "one batch, kept on the GPU: the limit"
_AGAIN = "the kept batch once more"
_RESIDENT = "resident on the GPU, all fields"

Step = Callable[[dict[str, Any]], object]
Feed = Iterator[dict[str, Any]]


def main() -> None:
    parser = arguments(__doc__, rows=50_000_000)
    parser.add_argument("--rounds", type=int, default=100, help="turns of each (%(default)s)")
    parser.add_argument("--only", choices=list(_QUESTIONS), help="one question instead of all")
    args = parser.parse_args()
    rows = np.empty(args.rows, ROW)
    rows.view(np.uint8)[:] = np.random.default_rng(1).integers(
        0, 64, rows.nbytes, np.uint8
    )  # small exponents: no float among them is NaN
    source = sw.ArraySource(rows)
    asked = [args.only] if args.only else list(_QUESTIONS)
    publish([case for name in asked for case in _QUESTIONS[name](source, args.rounds)], args.json)


def _eager(source: sw.Source, rounds: int) -> Iterator[Case]:
    for width in (256, 1024, 4096):
        step = _training(width)
        feeds = _feeds(source)
        ways = {name: partial(_fed, step, feed) for name, feed in feeds.items()}
        title = f"train a policy of width {width:,}, eager"
        yield _fed_case(title, ways, rounds, memory=1, resident=0.5)


def _fed_case(
    title: str,
    ways: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    memory: float,
    resident: float,
) -> Case:
    """Steps of all ways, and how long they may wait from memory and resident, in %."""
    costs, waiting = _beside(ways, rounds)
    ours = costs.pop("ours")
    return Case(
        f"{title}, {_BATCH:,} rows a batch",
        "us",
        Measured.of(ours),
        _measured(costs),
        [
            Target("% waiting, from memory", waiting["ours"], at_most=memory),
            Target("% waiting, resident", waiting[_RESIDENT], at_most=resident),
        ],
        f"{rounds} turns of {_STEPS} steps each; waiting, in %: "
        + ", ".join(f"{name} {each:.2f}" for name, each in waiting.items())
        + f"; {_here()}",
    )


def _fed(step: Step, feed: Feed) -> None:
    step(next(feed))


def _feeds(source: sw.Source) -> dict[str, Feed]:
    signed: Any = {"as_int64": ["board"]}
    two = source.columns(_TWO)
    ram = sw.torch.Loader(source, _BATCH, device="cuda", **signed)
    resident = sw.torch.Loader(source.to("cuda"), _BATCH, **signed)
    by_hand = sw.Loader(two, _BATCH)
    kept = {name: values.clone() for name, values in next(ram.forever()).items()}
    return {
        _KEPT: iter(lambda: kept, None),
        _AGAIN: iter(lambda: kept, None),
        "ours": ram.forever(),
        "ours, two fields": sw.torch.Loader(two, _BATCH, device="cuda", **signed).forever(),
        "`Loader` and `.to` by hand, two fields": (_by_hand(batch) for batch in by_hand.forever()),
        _RESIDENT: resident.forever(),
        "torch DataLoader, 8 workers, pinned, two fields": _workers(two),
    }


def _by_hand(batch: Any) -> dict[str, Any]:
    there = {name: torch.from_numpy(values).to("cuda") for name, values in batch.items()}
    return {**there, "board": there["board"].view(torch.int64)}


def _workers(source: sw.Source) -> Feed:
    """Its workers fetch whole batches of stepwell's rows, which is their best case."""
    data = sw.torch.MapDataset(source, as_int64=["board"])
    sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), _BATCH, True)
    loader = torch.utils.data.DataLoader(
        data,
        batch_sampler=sampler,
        num_workers=8,
        pin_memory=True,
        persistent_workers=True,
        collate_fn=sw.torch.collate,
    )
    while True:
        for batch in loader:
            yield {name: values.to("cuda", non_blocking=True) for name, values in batch.items()}


def _training(width: int, *, captured: bool = False) -> Step:
    """A step of training: from the cells of a board, one-hot, to the values of its moves."""
    layers = (torch.nn.Linear(256, width), torch.nn.ReLU(), torch.nn.Linear(width, 4))
    policy = torch.nn.Sequential(*layers).to("cuda")
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3, capturable=captured)
    shifts = torch.arange(60, -1, -4, device="cuda")

    def train(batch: dict[str, Any]) -> None:
        cells = batch["board"][:, None] >> shifts & 15
        boards = torch.nn.functional.one_hot(cells, 16).reshape(-1, 256).float()
        loss = (policy(boards) - batch["ev_values"]).square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()

    return train


def _beside(
    ways: Mapping[str, Callable[[], object]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Microseconds of a step of each, and the share that each waits for data, in %."""
    costs: dict[str, list[float]] = {name: [] for name in ways}
    limits: dict[str, list[float]] = {name: [] for name in ways if name != _KEPT}
    for turn in range(rounds + 1):
        for name in limits:
            pair = (_KEPT, name)[:: 1 if turn % 2 else -1]
            found = {each: _turn(ways[each]) for each in pair}
            if turn:
                costs[name].append(found[name])
                limits[name].append(found[_KEPT])
    costs[_KEPT] = [each for found in limits.values() for each in found]
    return costs, {name: _waiting(limits[name], costs[name]) for name in limits}


def _in_turns(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Microseconds of a step of each, the first turn left out."""
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name in sorted(ways, reverse=turn % 2 == 1):
            cost = _turn(ways[name])
            if turn:
                costs[name].append(cost)
    return costs


def _turn(way: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(_STEPS):
        way()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / _STEPS * 1e6


def _measured(costs: dict[str, list[float]]) -> dict[str, Measured]:
    return {name: Measured.of(each) for name, each in costs.items()}


def _waiting(limit: list[float], fed: list[float]) -> float:
    pairs = zip(limit, fed, strict=True)
    return 100 * statistics.median(1 - least / cost for least, cost in pairs)


def _graph(source: sw.Source, rounds: int) -> Iterator[Case]:
    """A step that is one CUDA graph, whose tensors are always the same ones."""
    ram = sw.torch.Loader(source, _BATCH, device="cuda", as_int64=["board"], drop_last=True)
    resident = sw.torch.Loader(source.to("cuda"), _BATCH, as_int64=["board"], drop_last=True)
    kept = {name: values.clone() for name, values in next(iter(ram)).items()}
    ways: dict[str, Callable[[], object]] = {}
    for name, loader in (("ours", ram), (_RESIDENT, resident)):
        ways[name] = _captured(_static(loader))
    for name in (_KEPT, _AGAIN):
        ways[name] = _captured(iter(lambda: kept, None))
    yield _fed_case("train by a CUDA graph", ways, rounds, memory=4, resident=2)


def _static(loader: Any) -> Feed:
    while True:
        yield from loader.static_batches()


def _captured(feed: Feed) -> Callable[[], object]:
    step, batch = _training(1024, captured=True), next(feed)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step(batch)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(batch)

    def replay(_: Step = step) -> None:  # the graph uses the step's tensors, and does not keep them
        next(feed)
        graph.replay()

    return replay


def _next(source: sw.Source, rounds: int) -> Iterator[Case]:
    """What `next` costs the consumer's thread when a batch is there already."""
    two = source.columns(_TWO)
    feeds = {
        "ours": (sw.torch.Loader(source, _BATCH, device="cuda").forever(), 25),
        "two fields": (sw.torch.Loader(two, _BATCH, device="cuda").forever(), 15),
        "resident": (sw.torch.Loader(source.to("cuda"), _BATCH).forever(), 25),
    }
    costs: dict[str, list[float]] = {name: [] for name in feeds}
    for _ in range(rounds):
        for name, (feed, _) in feeds.items():
            for turn in range(_STEPS):
                until = time.perf_counter() + 500e-6
                while time.perf_counter() < until:
                    pass
                begin = time.perf_counter()
                next(feed)
                if turn > 20:
                    costs[name].append((time.perf_counter() - begin) * 1e6)
    found = _measured(costs)
    yield Case(
        f"`next` on the consumer's thread, {len(FIELDS)} fields, {_BATCH:,} rows a batch",
        "us",
        found["ours"],
        {name: each for name, each in found.items() if name != "ours"},
        [
            Target(f"us, {name.replace('ours', 'six fields')}", found[name].median, at_most=limit)
            for name, (_, limit) in feeds.items()
        ],
        _here(),
    )


def _gather(source: sw.Source, rounds: int) -> Iterator[Case]:
    """Rows on the device into columns: the one kernel that makes a group of batches."""
    layout = source.to("cuda")._layout(())
    packed = torch.empty((len(source), ROW.itemsize), dtype=torch.uint8, device="cuda")
    for count in (_BATCH, 1 << 20):
        rows = torch.randint(len(source), (count,), dtype=torch.int32, device="cuda")
        there = torch.empty(layout.batch_bytes(count), dtype=torch.uint8, device="cuda")
        turns = _in_turns(
            {
                "ours": partial(layout.gather, rows, 1),
                "a plain copy of the same bytes": partial(torch.empty_like(there).copy_, there),
                "index_select of packed rows": partial(packed.index_select, 0, rows),
            },
            rounds,
        )
        costs = _measured(turns)
        ours, plain = costs.pop("ours"), costs["a plain copy of the same bytes"]
        target = Target("us", ours.median, at_most=20)
        if count > _BATCH:
            target = Target("times a plain copy", ours.median / plain.median, at_most=2.5)
        title = f"gather {count:,} resident rows into {len(FIELDS)} columns"
        yield Case(title, "us", ours, costs, [target], _here())


def _rates(source: sw.Source, rounds: int) -> Iterator[Case]:
    """Large batches from memory, against the copy and the gather alone."""
    for count in (65_536, 1 << 20):
        fed = sw.torch.Loader(source, count, device="cuda", drop_last=True).forever()
        host = sw.torch.Loader(source, count, drop_last=True).forever()
        size = sum(values.nbytes for values in next(host).values())
        here = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(size, dtype=torch.uint8, device="cuda")
        turns, rounds = max(10, 20_000_000 // count), min(rounds, 15)
        ways: dict[str, Callable[[], object]] = {
            "ours": partial(next, fed),
            "the gather alone": partial(next, host),
            "the copy alone": partial(there.copy_, here, non_blocking=True),
        }
        costs: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, way in ways.items():
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(turns):
                    way()
                torch.cuda.synchronize()
                if turn:
                    costs[name].append((time.perf_counter() - begin) / turns * 1e6)
        found = {
            name: Measured.of(each, rows_per_s=count / statistics.median(each) * 1e6)
            for name, each in costs.items()
        }
        ours = found.pop("ours")
        slower = max(each.median for each in found.values())
        yield Case(
            f"batches of {count:,} rows from memory to the GPU",
            "us",
            ours,
            found,
            [Target("of the slower of gather and copy", slower / ours.median, at_least=0.9)],
            _here(),
        )


def _shards(source: sw.Source, rounds: int) -> Iterator[Case]:
    """Activations in their order, from the page cache, against the copy alone."""
    width, rows, batch = 768, 1_000_000, 8192
    with tempfile.TemporaryDirectory() as folder:
        with sw.ShardWriter(Path(folder), width) as writer:
            for _ in range(0, rows, 50_000):
                writer.append(np.random.default_rng(1).standard_normal((50_000, width), np.float32))
        reader, rounds = sw.ShardReader.open(folder), min(rounds, 15)
        here = torch.empty((batch, width), pin_memory=True)
        there = torch.empty((batch, width), device="cuda")
        costs: dict[str, list[float]] = {"ours": [], "the copy alone": []}
        for turn in range(rounds + 1):
            for name, each in costs.items():
                torch.cuda.synchronize()
                begin = time.perf_counter()
                if name == "ours":
                    for _ in reader.batches(batch, dtype=None, device="cuda"):
                        pass
                else:
                    for _ in range(0, rows, batch):
                        there.copy_(here, non_blocking=True)
                torch.cuda.synchronize()
                if turn:
                    each.append((time.perf_counter() - begin) / reader.nbytes * 1e12)
    found = _measured(costs)
    ours, copy = found["ours"], found["the copy alone"]
    yield Case(
        f"activations of {width} floats in order to the GPU",
        "ms a GB",
        ours,
        {"the copy alone": copy},
        [Target("of the speed of the copy", copy.median / ours.median, at_least=0.9)],
        f"{reader.nbytes / 1e9:.1f} GB in the page cache, {batch:,} rows a batch; {_here()}",
    )


def _here() -> str:
    found = machine.describe()
    return (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; on {found['processor']}, "
        f"{found['memory']}"
    )


_QUESTIONS: dict[str, Callable[[sw.Source, int], Iterator[Case]]] = {
    "eager": _eager,
    "graph": _graph,
    "next": _next,
    "gather": _gather,
    "rates": _rates,
    "shards": _shards,
}

if __name__ == "__main__":
    main()
