"""One program for many devices: annotation, lowering, partitioned execution."""
