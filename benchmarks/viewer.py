"""The viewer in a real browser: frames a second, seeks, live latency, first paint, memory.

python -m benchmarks.viewer [--only playback seek live recording paint memory ten] [--minutes 10]

Chromium, without a screen and without a GPU, shares the machine with the server and whoever
records. A frame counts as drawn when requestAnimationFrame drew it, and as on the screen when the
next frame of the display begins. Dropped are steps that were due and not drawn: not decoded in
time, or leapt over because the page was late. `--rows` is the number of runs in the list.
"""

import multiprocessing
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from benchmarks import replay_data, viewer_data as data
from benchmarks.machine import Quiet
from benchmarks.results import Case, Measured, Target, arguments, console, publish, save
from stepwell import PackReader
from stepwell.replay import LaneWriter

_PLAYED_S = 15
_LIVE_S = 15
_SEEKS = 40
_PAINTS = 7
_TOGETHER_S = 8
_ROUNDS = 40
_RECORDED = 1500
_CONTEXT = multiprocessing.get_context("spawn")
_WHOLE = "document.querySelector('.sw-fields tbody') && !document.querySelector('.q-skeleton')"
_FIRST = "window.stepwellStats?.drawn > 0"

_WATCH = """() => { window.ticks = [];
  const tick = (time) => { ticks.push(time); requestAnimationFrame(tick); };
  requestAnimationFrame(tick); }"""
_SEEK = """async (step) => {
  const { seeks } = stepwellStats, before = seeks.length;
  stepwellPlayer.seek(step);
  const frame = () => new Promise(requestAnimationFrame);
  while (seeks.length === before) await frame();
  return seeks.at(-1); }"""


def main() -> None:
    parser = arguments(__doc__, rows=100_000)
    parser.add_argument("--only", nargs="+", choices=_CASES, default=list(_CASES), metavar="CASE")
    parser.add_argument("--minutes", type=float, default=10, help="of clicking (%(default)s)")
    args = parser.parse_args()
    quiet = Quiet()
    stores = data.stores(args.rows)
    cases: list[Case] = []
    with data.serving(*stores.values()) as served, data.chromium() as browser:
        for name in args.only:
            given = {"minutes": args.minutes} if name == "memory" else {}
            made = _CASES[name](browser, served, stores, **given)
            publish(made, None)
            cases += made
    save(cases, args.json)
    console.print(f"[dim]other programs used {quiet.others():.0%} of the machine[/]")


Stores = dict[str, Path]


def _long_run(served: data.Served, stores: Stores, name: str) -> tuple[str, int]:
    """The address of the longest episode of a store, and its steps."""
    number = served.number(stores[name])
    if name == "atari":
        return f"/s/{number}/play?run=long-ep0000", data.STEPS
    with PackReader.open(stores[name]) as pack:
        assert pack.runs is not None
        steps = pack.runs["steps"]
    return f"/s/{number}/play?run={int(steps.argmax())}", int(steps.max())


# Playing.


def playback(browser: Browser, served: data.Served, stores: Stores) -> list[Case]:
    cases = []
    for name, what in (
        ("atari", "Atari, frames of 210 x 160 x 3 and planes of 84 x 84 x 4"),
        ("games", "boards of 2048"),
    ):
        address, steps = _long_run(served, stores, name)
        seconds = min(_PLAYED_S, steps / 60 - 2)
        with data.page(browser, served, address) as page:
            page.wait_for_function(_FIRST)
            page.evaluate(_WATCH)
            page.evaluate("() => { stepwellPlayer.setRate(60); stepwellPlayer.play(); }")
            page.wait_for_function("stepwellPlayer.step > 30")
            before = page.evaluate("() => { ticks.length = 0; return { ...stepwellStats }; }")
            page.wait_for_timeout(seconds * 1000)
            after = page.evaluate("() => ({ ...stepwellStats, playing: stepwellPlayer.playing })")
            gaps = np.diff(page.evaluate("ticks"))
        assert after["playing"], "the episode ended before the time did"
        drawn, dropped = (after[each] - before[each] for each in ("drawn", "dropped"))
        parts = ", ".join(f"{after[e] - before[e]} {e}" for e in ("late", "skipped"))
        ours = Measured.of(gaps.tolist(), note=f"{drawn} frames drawn, {dropped} dropped: {parts}")
        cases.append(
            Case(
                f"{what}, played at 60 FPS for {seconds:.0f} s",
                "ms between two frames of the display",
                ours,
                {},
                [
                    Target("frames drawn a second", 1000 * drawn / gaps.sum(), at_least=58.8),
                    Target("% dropped", 100 * dropped / max(drawn + dropped, 1), at_most=2),
                    Target("% of the display's frames missed", _missed(gaps), at_most=2),
                ],
                f"Chromium {browser.version}, without a screen and a GPU, beside the server",
            )
        )
    return cases


def _missed(gaps: NDArray[np.float64]) -> float:
    """How many frames of a display of 60 Hz were not drawn at all, whatever the player counts."""
    due = np.maximum(1, np.rint(gaps * 60 / 1000))
    return float(100 * (due - 1).sum() / due.sum())


def seek(browser: Browser, served: data.Served, stores: Stores) -> list[Case]:
    cases = []
    random = np.random.default_rng(0)
    for name, what in (("atari", "frames of Atari"), ("games", "boards of 2048")):
        address, steps = _long_run(served, stores, name)
        with data.page(browser, served, address) as page:
            page.wait_for_function(_FIRST)
            places = (np.arange(1, _SEEKS + 1) * (steps - 1) // (_SEEKS + 1)).tolist()
            cold = [page.evaluate(_SEEK, step) for step in random.permutation(places).tolist()]
            page.wait_for_timeout(500)
            warm = [page.evaluate(_SEEK, step) for step in random.permutation(places).tolist()]
        if name == "games":
            what += " (a chunk has 1,024)"
        for kind, found in (("not loaded yet", cold), ("loaded", warm)):
            p95 = float(np.percentile(found, 95))
            cases.append(
                Case(
                    f"a seek in {what}, {kind}: until it is on the screen",
                    "ms",
                    Measured.of(found),
                    {},
                    [Target("ms, 19 of 20", p95, at_most=100)],
                )
            )
    return cases


# Live.


def live(browser: Browser, served: data.Served, stores: Stores) -> list[Case]:
    name = f"bench-{secrets.token_hex(4)}"
    frames = replay_data.played("Breakout").frames
    done = threading.Event()

    def work() -> None:
        begin, number = time.perf_counter(), 0
        with LaneWriter(name, frames.shape[1:]) as lane:
            while not done.is_set():
                number += 1
                at = {"at": time.time() * 1000}
                lane.publish(frames[number % len(frames)], step_rate_hz=60, metadata=at)
                time.sleep(max(0.0, begin + number / 60 - time.perf_counter()))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with data.page(browser, served, f"/live?run={name}") as page:
            page.wait_for_function("window.stepwellLive?.drawn > 60")
            page.evaluate("() => { stepwellLive.painted.length = 0; }")
            page.wait_for_timeout(_LIVE_S * 1000)
            found = page.evaluate(
                """() => { const off = Date.now() - performance.timeOrigin - performance.now();
                     return stepwellLive.painted.map(([time, step]) => time + off - step.at); }"""
            )
    finally:
        done.set()
        thread.join()
    return [
        Case(
            "live, from publish until the frame is on the screen: 60 frames/s of 210 x 160 x 3",
            "ms",
            Measured.of(found, note=f"{len(found) / _LIVE_S:.0f} frames/s were shown"),
            {},
            [Target("ms, 19 of 20", float(np.percentile(found, 95)), at_most=100)],
        )
    ]


def recording(browser: Browser, served: data.Served, stores: Stores) -> list[Case]:
    """Atari, played and recorded as fast as it goes, with and without somebody who looks."""
    name = f"bench-{secrets.token_hex(4)}"
    ways: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "nobody looks": nullcontext,
        "a browser on another machine looks": lambda: _far_away(served, name),
        "a browser on this machine looks": lambda: _looking(browser, served, name),
    }
    costs: dict[str, list[float]] = {way: [] for way in ways}
    with replay_data.scratch("viewer") as folder, _recorder(folder, name) as record:
        for turn in range(_ROUNDS):  # short ones of one recording: the machine changes its speed
            for way in sorted(ways, reverse=turn % 2 == 1):
                with ways[way]():
                    costs[way].append(record())
    found = {way: Measured.of(each) for way, each in costs.items()}
    alone = found.pop("nobody looks")
    slower = {
        way: 100 * (float(np.median(np.array(costs[way]) / costs["nobody looks"])) - 1)
        for way in found
    }
    return [
        Case(
            f"a step of Breakout, played and recorded: {_ROUNDS} turns of {_RECORDED:,} steps",
            "µs a step",
            alone,
            found,
            [Target(f"% more when {way}", value, at_most=3) for way, value in slower.items()],
            "ours is without anybody; Chromium draws in software, on the cores of the recording; "
            "what is promised is compared within each turn",
        )
    ]


@contextmanager
def _recorder(folder: Path, name: str) -> Iterator[Callable[[], float]]:
    """A process that records, and a function that has it play on: microseconds a step."""
    here, there = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_record, args=(there, folder, name))
    process.start()

    def record() -> float:
        here.send(True)
        return float(here.recv())

    record()
    yield record
    here.send(False)
    process.join()


def _record(pipe: Connection, folder: Path, name: str) -> None:
    import gymnasium

    from stepwell.replay import Record

    env = Record(
        gymnasium.make("ALE/Breakout-v5", render_mode="rgb_array"), folder, run_id=name, lane=True
    )
    env.action_space.seed(0)
    env.reset(seed=0)
    while pipe.recv():
        begin = time.perf_counter()
        for _ in range(_RECORDED):
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()
        pipe.send(1e6 * (time.perf_counter() - begin) / _RECORDED)
    env.close()


@contextmanager
def _looking(browser: Browser, served: data.Served, name: str) -> Iterator[None]:
    with data.page(browser, served, f"/live?run={name}") as page:
        page.wait_for_function("window.stepwellLive?.drawn > 0")
        page.wait_for_timeout(500)  # what a page costs to begin is no part of it
        yield


@contextmanager
def _far_away(served: data.Served, name: str) -> Iterator[None]:
    """What a browser elsewhere asks for: each frame is reported as drawn when it has come."""
    import httpx

    with httpx.Client() as client:
        client.get(served.address)
        cookies = "; ".join(f"{key}={value}" for key, value in client.cookies.items())
    headers = {"Cookie": cookies, "Origin": served.base}
    address = served.base.replace("http", "ws") + f"/data/lane?run={name}"
    with connect(address, additional_headers=headers) as socket:

        def answer() -> None:
            with suppress(ConnectionClosed):
                for _ in socket:
                    socket.send("1")

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        socket.close()
        thread.join()


# Pages.


def paint(browser: Browser, served: data.Served, stores: Stores) -> list[Case]:
    number = served.number(stores["runs"])
    runs = int(stores["runs"].name.rpartition("-")[2])
    ready = "document.querySelectorAll('tbody tr').length > 10"
    first = [_paint(browser, served, f"/s/{number}/runs", ready) for _ in range(_PAINTS)]
    overview = [_paint(browser, served, f"/s/{number}", _WHOLE) for _ in range(_PAINTS)]
    filters = []
    with data.page(browser, served, f"/s/{number}/runs") as page:
        page.wait_for_function(ready)
        for i in range(12):
            filters.append(_filter(page, f"score > {2000 + 317 * i} AND engine = 'engine-{i % 7}'"))
    rows = {
        name: [
            _paint(browser, served, f"/s/{served.number(stores[name])}", _WHOLE)
            for _ in range(_PAINTS)
        ]
        for name in ("rows", "few rows", "steps", "few steps")
    }
    many, few, steps, few_steps = (Measured.of(each) for each in rows.values())
    return [
        Case(
            f"a first visit to the list of {runs:,} runs: until its rows are there",
            "ms",
            Measured.of(first),
            {"its overview, with all charts": Measured.of(overview)},
            [Target("ms, the slowest", max(first + overview), at_most=2000)],
        ),
        Case(
            f"a filter over {runs:,} runs: until its rows are there",
            "ms",
            Measured.of(filters),
            {},
            [Target("ms, the slowest", max(filters), at_most=300)],
        ),
        Case(
            f"a first visit to the overview of an array of {data.ROWS:,} rows: until all is there",
            "ms",
            many,
            {"of 1,000 rows": few},
            [Target("times one of 1,000", many.median / few.median, at_most=1.25)],
        ),
        Case(
            f"a first visit to the overview of {data.ROWS:,} steps: until all is there",
            "ms",
            steps,
            {"of 1,000 steps": few_steps},
            [Target("times one of 1,000", steps.median / few_steps.median, at_most=1.25)],
        ),
    ]


def _paint(browser: Browser, served: data.Served, address: str, ready: str) -> float:
    """Milliseconds from the request of a page until it shows what it is for."""
    context = data.window(browser, served)
    page = context.new_page()
    page.goto(served.base + address, wait_until="commit")
    page.wait_for_function(ready, polling="raf")
    found = page.evaluate("performance.now()")
    context.close()
    return float(found)


def _filter(page: Page, condition: str) -> float:
    """Milliseconds from the key until the number of runs is that of the filter."""
    page.get_by_label("Condition").fill(condition)
    page.evaluate(
        """() => { const count = document.querySelector("main [aria-live=polite]");
             const shown = () => count.textContent, before = shown();
             window.filtered = new Promise((resolve) => addEventListener("keydown", () => {
               const begin = performance.now();
               const look = () => shown() === before || document.querySelector(".q-table--loading")
                 ? requestAnimationFrame(look) : resolve(performance.now() - begin);
               look(); }, { capture: true, once: true })); }"""
    )
    page.get_by_label("Condition").press("Enter")
    return float(page.evaluate("filtered"))


# For long, and for many.


def memory(browser: Browser, served: data.Served, stores: Stores, minutes: float) -> list[Case]:
    """Clicking through episodes. After every tenth a record of 100 MB is looked at."""
    number, large = (served.number(stores[name]) for name in ("atari", "large"))
    until, sizes, clicks = time.monotonic() + 60 * minutes, list[int](), 0
    context = data.window(browser, served)
    page = context.new_page()
    while time.monotonic() < until or len(sizes) < 20:
        if clicks % 10 == 0:
            page.goto(f"{served.base}/s/{large}/rows?row={clicks // 10 % data.LARGE}")
            page.wait_for_selector("tbody tr")
            page.goto(f"{served.base}/s/{number}/play?run=short-ep{clicks % 30:04}")
            page.wait_for_function(_FIRST)
        page.evaluate(_SEEK, 150)
        page.evaluate("() => { stepwellPlayer.setRate(240); stepwellPlayer.play(); }")
        page.wait_for_timeout(200)
        before = page.evaluate("stepwellPlayer.keys[0]")
        page.keyboard.press("n")
        page.wait_for_function("(key) => stepwellPlayer.keys[0] !== key", arg=before)
        clicks += 1
        sizes.append(served.anonymous_bytes())
    context.close()
    third = max(1, len(sizes) // 3)
    early, late = (float(np.median(part)) for part in (sizes[third : 2 * third], sizes[-third:]))
    return [
        Case(
            f"the server's memory over {minutes:g} minutes of clicking: {clicks} episodes, and "
            f"{-(-clicks // 10)} times a record of 100 MB",
            "MiB, anonymous",
            Measured.of([size / 2**20 for size in sizes]),
            {},
            [
                Target(
                    "% more in the last third than in the second",
                    100 * (late / early - 1),
                    at_most=5,
                )
            ],
            f"{sizes[0] / 2**20:.0f} MiB after the first, {max(sizes) / 2**20:.0f} at most, "
            f"{sizes[-1] / 2**20:.0f} after the last",
        )
    ]


def ten(browser: Browser, served: data.Served, stores: Stores) -> list[Case]:
    """Ten windows on the same data."""
    address, steps = _long_run(served, stores, "atari")
    windows = [data.window(browser, served) for _ in range(10)]
    pages = [window.new_page() for window in windows]
    for page in pages:
        page.goto(served.base + address, wait_until="commit")
    for page in pages:
        page.wait_for_function(_FIRST)
    for page in pages:
        page.evaluate("() => { stepwellPlayer.setRate(10); stepwellPlayer.play(); }")
    before = [page.evaluate("({ ...stepwellStats })") for page in pages]
    pages[0].wait_for_timeout(1000 * _TOGETHER_S)
    after = [page.evaluate("({ ...stepwellStats })") for page in pages]
    drawn, dropped = (
        [late[name] - early[name] for early, late in zip(before, after, strict=True)]
        for name in ("drawn", "dropped")
    )
    seeks = []
    for i, page in enumerate(pages):
        page.evaluate("stepwellPlayer.pause()")
        seeks += [page.evaluate(_SEEK, (1000 + 997 * i + 211 * k) % steps) for k in range(4)]
    for window in windows:
        window.close()
    return [
        Case(
            "ten windows play the same episode at 10 FPS; a seek in one while others play",
            "ms",
            Measured.of(seeks),
            {},
            [
                Target("frames a second, the slowest", min(drawn) / _TOGETHER_S, at_least=9.8),
                Target("% dropped", 100 * sum(dropped) / sum(drawn + dropped), at_most=2),
                Target("ms, 19 of 20 seeks", float(np.percentile(seeks, 95)), at_most=100),
            ],
        )
    ]


_CASES: dict[str, Callable[..., list[Case]]] = {
    "playback": playback,
    "seek": seek,
    "live": live,
    "recording": recording,
    "paint": paint,
    "memory": memory,
    "ten": ten,
}


if __name__ == "__main__":
    main()
