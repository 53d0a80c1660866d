"""Runs a command by its name: `python -m gshard_nmt train --config demo ...`."""

import sys

from gshard_nmt.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
