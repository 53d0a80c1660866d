"""Test sets and their translations."""
