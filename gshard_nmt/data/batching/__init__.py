"""From shards to global batches: mixture, packing, draws."""
