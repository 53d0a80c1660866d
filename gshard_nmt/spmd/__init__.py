"""Annotates tensors, lowers functions, and compiles and runs them as one program on many devices."""
