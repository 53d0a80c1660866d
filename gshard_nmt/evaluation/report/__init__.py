"""The pages, tables and figures of a report."""
