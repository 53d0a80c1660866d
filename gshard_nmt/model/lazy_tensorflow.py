"""Imports TensorFlow when it is first used.

The modules that compute with parameters also declare, count and shard them. A program that only
declares parameters need not wait for TensorFlow, nor have it installed.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf
else:

    class _TensorFlow:
        """Imports the module when an attribute is first read, and keeps the attribute."""

        def __getattr__(self, name: str) -> Any:
            import tensorflow

            value = getattr(tensorflow, name)
            setattr(self, name, value)
            return value

    tf = _TensorFlow()

__all__ = ["tf"]
