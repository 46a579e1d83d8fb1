"""Nothing of this folder is collected without a word: machines of `make test` have no GPU."""

import os

collect_ignore_glob = [] if os.environ.get("STEPWELL_GPU") == "1" else ["test_*.py"]
