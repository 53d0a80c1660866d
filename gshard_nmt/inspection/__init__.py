"""Reads a compiled program (memory, collectives, arithmetic) and reports it as text and JSON."""
