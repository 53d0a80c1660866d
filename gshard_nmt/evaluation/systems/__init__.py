"""The systems that a report compares."""
