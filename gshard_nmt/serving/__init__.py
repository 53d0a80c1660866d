"""Serving translations over HTTP: requests, their languages, and the batches that answer them."""
