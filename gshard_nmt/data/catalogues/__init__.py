"""A parallel corpus from the message catalogues of installed software."""
