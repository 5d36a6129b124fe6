"""``python scripts/distance.py key=value ...`` is ``otdd distance key=value ...``."""

import sys

from otdd_flash.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["distance", *sys.argv[1:]]))
