"""Runs a command by its name: `python -m gshard_nmt train --config demo ...`."""

from gshard_nmt.cli.commands import main
from gshard_nmt.cli.worker import leave

if __name__ == "__main__":
    leave(main())
