"""Text to batches: corpora, catalogues, vocabularies, mixture, packing."""
