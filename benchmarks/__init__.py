"""Measurements, one question to a script, with the peers side by side in one run.

    python -m benchmarks.take      random rows of a table in memory: how near to the hardware?
    python -m benchmarks.loader    a whole shuffled epoch: against every other loader
    python -m benchmarks.shuffle   row numbers alone: against stored permutations
    python -m benchmarks.pack      runs of different lengths: files, LMDB, JSON, plain Python
    python -m benchmarks.steps     datasets of steps: filters, appends, a database
    python -m benchmarks.records   records that change: against every other format of records
    python -m benchmarks.shards    activations in order: against a bare loop, plain reads, NumPy
    python -m benchmarks.report    all of these, into docs/performance.md and its plot
    python -m benchmarks.demo      what `make demo` shows

The machines these run on are noisy, so candidates take turns in short rounds and only
ratios inside one run count.
"""
