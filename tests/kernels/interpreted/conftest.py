"""These tests run where TRITON_INTERPRET=1 is set before Triton is imported, as test_interpreted.py does."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
