"""Train a sparse autoencoder on activation shards; killed and started again, it goes on there.

python examples/train_sae.py [sae-data/]

Without shards in the folder it makes some: rows that are sums of 6 out of 256 directions, and
noise. The autoencoder sees the rows only and has to find the directions. With the defaults it
finds all of them (cosine above 0.9) in less than a minute.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import stepwell as sw

DIRECTIONS, WIDTH, ACTIVE = 256, 256, 6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        default=Path("sae-data"),
        help="folder of shards, checkpoint and plot, made if it is missing (default: %(default)s)",
    )
    parser.add_argument("--rows", type=count, default=200_000, help="to make, if there are none")
    parser.add_argument("--features", type=count, default=384)
    parser.add_argument("--steps", type=count, default=1500)
    parser.add_argument("--seconds", type=float, help="stop after so long, if that is earlier")
    parser.add_argument("--batch-size", type=count, default=512)
    parser.add_argument("--every", type=count, default=100, help="steps between checkpoints")
    parser.add_argument("--checkpoint", type=Path, help="default: sae.pt in the folder")
    args = parser.parse_args()
    begin = time.perf_counter()

    try:
        acts = open_shards(args.data, args.rows)
    except (OSError, ValueError) as problem:
        parser.error(f"data: expected a folder of shards, or room for one - {problem}")
    if args.batch_size > len(acts):
        parser.error(
            f"{args.data}: expected at least {args.batch_size} rows (--batch-size), got {len(acts)}"
        )
    print(f"{args.data}: {len(acts):,} rows of {acts.width}, {len(acts.shards)} shards", flush=True)
    torch.manual_seed(0)
    model = Autoencoder(acts.width, args.features)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.99))
    loader = sw.torch.Loader(acts, args.batch_size, seed=1, drop_last=True)
    checkpoint = args.checkpoint or args.data / "sae.pt"
    curve: list[tuple[int, float]] = []
    step = 0
    if checkpoint.exists():
        try:
            saved = torch.load(checkpoint)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            step, curve = saved["step"], saved["curve"]
        except Exception as problem:  # cut, of other data, of another network
            name = type(problem).__name__
            parser.error(f"{checkpoint}: expected a checkpoint of this training, got a {name}")
        print(f"goes on after step {step}", flush=True)
    else:
        model.centre(torch.from_numpy(acts.take(np.arange(min(len(acts), 4096)))["data"]))

    waited, started = 0.0, time.perf_counter()
    sums = torch.zeros(3)
    batches = loader.forever()
    while step < args.steps:
        asked = time.perf_counter()
        rows = next(batches)["data"]
        waited += time.perf_counter() - asked
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step / args.steps)
        codes = model.encode(rows)
        error = (model.decode(codes) - rows).square().sum(1).mean()
        loss = error + model.sparsity(codes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.normalize()
        step += 1
        spread = (rows - rows.mean(0)).square().sum(1).mean()
        active = (codes > 0).sum(1).float().mean()
        sums += torch.stack([loss.detach(), 1 - error.detach() / spread, active])
        late = args.seconds is not None and time.perf_counter() - begin > args.seconds
        if step % args.every == 0 or step == args.steps:
            since = step - (curve[-1][0] if curve else 0)
            mean, explained, active_features = (sums / since).tolist()
            sums.zero_()
            curve.append((step, mean))
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save({**state, "loader": loader.state_dict(), "step": step, "curve": curve}, checkpoint)
            share = waited / (time.perf_counter() - started)
            print(
                f"step {step} of {args.steps}: loss {mean:.4f}, {explained:.1%} explained, "
                f"{active_features:.1f} features active, waited {share:.1%}",
                flush=True,
            )
            if late:
                break
    share = waited / max(time.perf_counter() - started, 1e-9)
    loader.close()

    if curve:
        print(f"the loss is drawn in {draw(curve, args.data / 'sae')}")
    if (args.data / "directions.npy").exists():
        best = recovered(model, np.load(args.data / "directions.npy"))
        found = (best > 0.9).float().mean().item()
        print(f"directions found: {found:.1%} (cosine {best.mean().item():.3f} in the mean)")
    seconds = time.perf_counter() - begin
    print(f"{step} steps, {seconds:.0f} s, {share:.1%} of the training spent waiting for data")


def count(text: str) -> int:
    """How many, from a command line: a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


class Autoencoder(nn.Module):
    """Rows as sums of a few of many directions, each of length one."""

    def __init__(self, width: int, features: int, penalty: float = 0.3) -> None:
        super().__init__()
        directions = torch.randn(features, width)
        directions /= directions.norm(dim=1, keepdim=True)
        self.decoder = nn.Parameter(directions)
        self.encoder = nn.Parameter(directions.clone())
        self.threshold = nn.Parameter(torch.zeros(features))
        self.center = nn.Parameter(torch.zeros(width))
        self.penalty = penalty

    def encode(self, rows: Tensor) -> Tensor:
        return torch.relu((rows - self.center) @ self.encoder.T + self.threshold)

    def decode(self, codes: Tensor) -> Tensor:
        return codes @ self.decoder + self.center

    def sparsity(self, codes: Tensor) -> Tensor:
        return self.penalty * codes.sum(1).mean()

    @torch.no_grad()
    def centre(self, rows: Tensor) -> None:
        """Begin at the mean of some rows."""
        self.center.copy_(rows.mean(0))

    @torch.no_grad()
    def normalize(self) -> None:
        """Long directions would make codes, and so the penalty, small."""
        self.decoder.div_(self.decoder.norm(dim=1, keepdim=True))


def learning_rate(done: float) -> float:
    """A short warm-up, then down to nothing: a function of progress, so it resumes by itself."""
    return 3e-3 * min(1.0, done / 0.02, (1 - done) / 0.3) + 1e-5


def open_shards(data: Path, rows: int) -> sw.ShardReader:
    """The shards of a folder, which are made when there are none, or not yet all of them."""
    begun = data.resolve().with_name(f"{data.resolve().name}.part.npy")
    if begun.exists() or not any(data.glob("*.shard")):
        print(f"making {rows:,} rows", flush=True)
        rng = np.random.default_rng(0)
        directions = rng.standard_normal((DIRECTIONS, WIDTH), np.float32)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        center = rng.standard_normal(WIDTH, np.float32)
        with sw.ShardWriter(data, WIDTH, mode="a", shard_bytes=1 << 25) as writer:
            np.save(begun, directions)
            while len(writer) < rows:  # after a kill, from the last whole shard on
                rng = np.random.default_rng((1, len(writer)))
                count = min(8192, rows - len(writer))
                codes = np.zeros((count, DIRECTIONS), np.float32)
                chosen = rng.integers(0, DIRECTIONS, (count, ACTIVE))
                values = 0.5 + rng.exponential(0.5, chosen.shape)
                np.put_along_axis(codes, chosen, values.astype(np.float32), 1)
                noise = rng.standard_normal((count, WIDTH), np.float32)
                writer.append(codes @ directions + center + np.float32(0.02) * noise)
        begun.replace(data / "directions.npy")
    return sw.ShardReader.open(data)


@torch.no_grad()
def recovered(model: Autoencoder, directions: Any) -> Tensor:
    """For each direction, the cosine of the feature that is nearest to it."""
    found = model.decoder / model.decoder.norm(dim=1, keepdim=True)
    best: Tensor = (torch.from_numpy(directions) @ found.T).amax(1)
    return best


def draw(curve: list[tuple[int, float]], path: Path) -> Path:
    """A picture of the loss: PNG where matplotlib is installed, else SVG."""
    steps, losses = zip(*curve, strict=True)
    try:
        import matplotlib
    except ImportError:
        return draw_svg(list(steps), list(losses), path.with_suffix(".svg"))
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.plot(steps, losses)
    axes.set(xlabel="step", ylabel="loss", ylim=(0, None), title="sparse autoencoder")
    figure.savefig(path.with_suffix(".png"), dpi=150, bbox_inches="tight")
    pyplot.close(figure)
    return path.with_suffix(".png")


def draw_svg(steps: list[int], losses: list[float], path: Path) -> Path:
    high = max(losses)
    points = " ".join(
        f"{560 * step / steps[-1] + 20:.1f},{360 - 340 * loss / high:.1f}"
        for step, loss in zip(steps, losses, strict=True)
    )
    path.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 400">'
        f'<polyline points="{points}" fill="none" stroke="black"/>'
        f'<text x="20" y="390">loss, {high:.3g} to {losses[-1]:.3g}, {steps[-1]} steps</text>'
        "</svg>\n"
    )
    return path


def save(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint beside the last one, then put it in its place: a kill leaves either."""
    torch.save(state, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


if __name__ == "__main__":
    main()
