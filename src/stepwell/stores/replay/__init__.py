"""Replay stores: what agents did, step by step, in SQLite and HDF5. See docs/formats/replay.md.

Reading needs nothing but NumPy; `writer` needs the extra `replay`.
"""
