"""Checkpoints of a run: their files, their checksums, which ones stay."""
