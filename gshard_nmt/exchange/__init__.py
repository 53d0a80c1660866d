"""Trained models in the file formats of other software."""
