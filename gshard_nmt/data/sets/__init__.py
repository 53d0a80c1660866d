"""The files: the corpus, and the prepared data with its manifest and shards."""
