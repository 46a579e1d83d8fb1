"""A pack written as JSON lines, a line a step, in a process of its own.

    python -m benchmarks.pack_export PACK FILE

prints the seconds and the peak of resident memory as JSON. A peak belongs to a process, so
`benchmarks.pack_jsonl` starts one, and watches its anonymous memory from outside.
"""

import json
import sys
import time

from benchmarks import measure
from stepwell import PackReader


def main() -> None:
    pack, out = sys.argv[1:]
    begin = time.perf_counter()
    PackReader.open(pack).to_jsonl(out, steps=True)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "peak_bytes": measure.peak_bytes()}))


if __name__ == "__main__":
    main()
