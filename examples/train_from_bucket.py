"""Train from a bucket; stopped in the middle, it goes on exactly where it was.

python examples/train_from_bucket.py [bucket-data/] [--url s3://bucket/games]

A few seconds. Without a URL a small dataset is made and put on a web server of this program.
"""

import argparse
import functools
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stepwell as sw

RUNS, STEPS = 50, 400


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        default=Path("bucket-data"),
        help="folder for the cache and the dataset, made if it is missing (default: %(default)s)",
    )
    parser.add_argument("--url", help="of a step dataset with the fields x and y of this one")
    args = parser.parse_args()
    try:
        args.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"data: expected a folder - {error}")
    if args.url:
        train(args.url, args.data / "cache")
        return
    if not (args.data / "games").exists():
        make(args.data / "games")
    with served(args.data) as url:
        train(f"{url}/games", args.data / "cache")


def make(path: Path) -> None:
    """A step dataset: x, and y as a linear model gives it."""
    random = np.random.default_rng(0)
    with sw.StepWriter(path, [("x", "<f4", (8,)), ("y", "<f4"), ("row", "<i8")]) as writer:
        for run in range(RUNS):
            x = random.normal(size=(STEPS, 8)).astype(np.float32)
            rows = np.arange(run * STEPS, (run + 1) * STEPS)
            writer.append({"x": x, "y": x @ np.arange(8, dtype=np.float32), "row": rows})


def train(url: str, cache: Path) -> None:
    """Stop after half an epoch, and have another loader go on."""
    games = sw.open(url, cache=cache)
    print(f"{len(games):,} steps at {url}")
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    seen, state, count = [], None, -(-len(games) // 256)
    for part in (count // 2, count - count // 2):
        # Blocks of neighbours are few and long requests, and the next ones are on their way.
        loader = sw.torch.Loader(games, 256, sampler=sw.Block(512, seed=7, group=8))
        if state is not None:
            loader.load_state_dict(state)
        for _, batch in zip(range(part), loader, strict=False):
            loss = torch.nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(batch["x"])
        print(f"epoch {loader.epoch} row {loader.position} loss {loss.item():.4f}", flush=True)
        state = loader.state_dict()
        loader.close()
    order = sw.Block(512, seed=7, group=8).order(len(games)).rows(0, 0, len(games))
    exact = np.array_equal(torch.cat(seen).numpy(), games.take(order)["x"])
    print(f"every row once, in the order of the sampler: {exact}")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A web server with the files of a folder; yields its URL."""
    handler = functools.partial(Ranges, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Ranges(SimpleHTTPRequestHandler):
    """Python's own server, with what buckets have besides: ranges and ETags."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        size, begin, status = path.stat().st_size, 0, 200
        end = size
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            begin, status = int(asked[1]), 206
            end = min(int(asked[2]) + 1, size) if asked[2] else size
        self.send_response(status)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", f'"{path.stat().st_mtime_ns:x}"')
        self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()
        if with_body:
            with path.open("rb") as file:
                self.wfile.write(os.pread(file.fileno(), end - begin, begin))

    def log_message(self, *args: Any) -> None: ...


if __name__ == "__main__":
    main()
