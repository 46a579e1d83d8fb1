# ruff: noqa: E501
"""The table of lines that users write in their frameworks: python -m tests.frameworks.table

Runs the tests of this folder, each of which is of one row, and prints the rows as Markdown.
"""

import sys

import pytest

ROWS = """
before | Lightning DDP, `mp.spawn`, `jax.distributed`, Ray | the loader is made before the process group | each rank has its share, every row comes once
fit | Lightning | `Trainer.fit` with a val loader, `limit_val_batches=2`, `limit_train_batches=5` | a validation sees 200 of 200 rows, or the same 128; an epoch 320 rows
resume | Lightning, torch | resume from an epoch's end, or from its middle | the next epoch, or the rest of this one, exactly
sharded again | accelerate x 2 | `prepare(DataLoader(IterableDataset, batch_size=None))` | refused, with the line to write; `prepare(Loader)` gives every row once
attributes | accelerate, transformers, Ray, Fabric | `skip_first_batches`, Trainer resume, `prepare_data_loader`, `setup_dataloaders` | the rest of the epoch, exactly; every row once over both ranks
batched again | transformers | `Trainer(train_dataset=IterableDataset(...))` | refused, with the line to write; a MapDataset trains and resumes
workers | torch DataLoader, StatefulDataLoader | workers that are not persistent, no `set_epoch` | another order in each epoch
integers | torch | `run_id`, `step_index` | int64 and int32: `+`, `<`, `max`, indexing and pickle work
tail | JAX, 4 devices | the last batch of an epoch | fits the sharding; with `pad_last`, the mask has every row once
taken | Loader | a torch tensor, DataFrame, Arrow table, HF dataset, Parquet path | every row once
given | pandas, Arrow, NumPy | `pd.DataFrame(batch)`, `np.asarray(source)`, DuckDB over a source | the rows, with their types; of arrays in a row `as_source(batch).to_pandas()`, and `np.asarray` of one field
gym | stable-baselines3 | `Record(vec_env)` | names the line to write, which records what SB3's own buffer has
"""
TABLE = {cells[0]: cells[1:] for cells in (row.split(" | ") for row in ROWS.strip().splitlines())}


class Results:
    """Collects the outcome of each row's tests: a plug-in of pytest."""

    def __init__(self) -> None:
        self.outcomes: dict[str, list[str]] = {key: [] for key in TABLE}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            for name, key in report.user_properties:
                if name == "row":
                    self.outcomes[str(key)].append(report.outcome)

    def __str__(self) -> str:
        lines = ["| where | line a user writes | result | tests passed |", "|---|---|---|---|"]
        for key, cells in TABLE.items():
            passed = f"{self.outcomes[key].count('passed')} of {len(self.outcomes[key])}"
            lines.append(f"| {' | '.join([*cells, passed])} |")
        return "\n".join(lines)


if __name__ == "__main__":
    results = Results()
    code = pytest.main(["-q", "tests/frameworks", *sys.argv[1:]], plugins=[results])
    print(f"\n{results}")
    sys.exit(code)
