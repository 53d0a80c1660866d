"""The settings of a run: reading, checking and writing them."""
