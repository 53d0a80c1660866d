"""Scores of one system, and how sure they are."""
