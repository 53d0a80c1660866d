"""Runs a program by its name: `python -m gshard_nmt train --help`."""

import sys

from gshard_nmt.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
