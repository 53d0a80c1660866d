"""From text to batches: corpora, vocabularies, shards, sampling of languages, packing."""
