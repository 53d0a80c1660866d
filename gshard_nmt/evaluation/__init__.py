"""Scores of hypotheses: validation during training, and the report after it."""
