"""Beam search, and translators that run it with a trained model."""
