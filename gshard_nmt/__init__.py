"""gshard-nmt: massively multilingual translation with GShard's sharded Mixture of Experts."""

__version__ = "0.1.0"
