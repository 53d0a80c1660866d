"""Weights between those that a run started from and those that it has learned.

On the straight line between them, a model often keeps most of what it knew at the start and has most of
what it has learned, or even more of it (Wortsman et al. 2022, "Robust fine-tuning of zero-shot models",
section 3). A row of an embedding that the start did not have is as it was learned: its value at the
start is no knowledge.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

GROUP = "blend"
"""The group of arrays of a checkpoint with such weights. It is decoded, and never trained further."""

SHARES = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
"""The shares of the change that are tried, beside all of it."""


@dataclasses.dataclass(frozen=True)
class StartWeights:
    """The weights that a run started from, on the devices and split as those of the run.

    Attributes:
      weights: the arrays that are comparable, by name. Others, such as those of new layers, are missing.
      new_rows: bool[V] for each embedding that has rows which the start did not have.
    """

    weights: Mapping[str, Any]
    new_rows: Mapping[str, np.ndarray]

    def blended(self, learned: Mapping[str, Any], share: float) -> dict[str, Any]:
        """Returns start + share * (learned - start), with dtypes and shardings of the learned weights.

        Args:
          learned: the weights of the run; they are not changed.
          share: between 0 and 1.
        """
        import jax

        def blend(start: Mapping[str, Any], learned: Mapping[str, Any]) -> dict[str, Any]:
            return {name: self._between(name, start[name], learned[name], share) for name in start}

        ours = {name: learned[name] for name in self.weights}
        shardings = {name: array.sharding for name, array in ours.items()}
        return {**learned, **jax.jit(blend, out_shardings=shardings)(dict(self.weights), ours)}

    def _between(self, name: str, start: Any, learned: Any, share: float) -> Any:
        import jax.numpy as jnp

        begin, end = start.astype(np.float32), learned.astype(np.float32)
        between = (begin + share * (end - begin)).astype(learned.dtype)
        if name not in self.new_rows:
            return between
        is_new = self.new_rows[name].reshape(-1, *[1] * (learned.ndim - 1))
        return jnp.where(is_new, learned, between)


def words(share: float) -> str:
    """Says what part of the change the weights have."""
    return f"{share:g} of the change"
