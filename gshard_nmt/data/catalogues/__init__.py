"""Message catalogues of installed software as a parallel corpus."""
