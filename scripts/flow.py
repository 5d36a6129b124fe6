"""``python scripts/flow.py key=value ...`` is ``otdd flow key=value ...``."""

import sys

from otdd_flash.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["flow", *sys.argv[1:]]))
