"""Nothing of this folder is collected without Azurite, which npm has: `make test-azure`."""

import os

collect_ignore_glob = [] if "STEPWELL_AZURITE" in os.environ else ["test_*.py"]
