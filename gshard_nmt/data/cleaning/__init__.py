"""Cleaning of parallel text: filters, duplicates, and the report of what was left out."""
