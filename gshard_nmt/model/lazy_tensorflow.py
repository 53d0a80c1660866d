"""TensorFlow, imported when it is first used.

Parameters are declared, counted and sharded by the same modules that compute with them; whoever only
declares must not wait for TensorFlow, nor need it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf
else:

    class _TensorFlow:
        """Stands for the module until an attribute is read."""

        def __getattr__(self, name: str) -> Any:
            import tensorflow

            value = getattr(tensorflow, name)
            setattr(self, name, value)
            return value

    tf = _TensorFlow()

__all__ = ["tf"]
