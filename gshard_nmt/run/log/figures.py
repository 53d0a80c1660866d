"""The metrics of a training step as named numbers for the log: one for each layer and each language."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_LAYER, _LANGUAGE = "layer_", "language_"
_BUSIEST = "busiest_expert/"


@dataclasses.dataclass(frozen=True)
class FigureNames:
    """Names the elements of metrics that are vectors: one element for each MoE layer or language.

    Attributes:
      layers: the MoE layers, in the order of `StepFunctions.moe_layer_names`.
      languages: the languages of the run, in the order of `PreparedData.languages`.
    """

    layers: Sequence[str]
    languages: Sequence[str]

    def values(self, metrics: Mapping[str, Any]) -> dict[str, float | int]:
        """Returns numbers by name, such as `overflow_fraction/encoder_1` and `nll/fr`.

        `busiest_expert` is the mean over the layers of the load of each layer's busiest expert. Languages
        without a target token in the batch are left out. `tokens_seen` is left out too, because the
        counters of the run read it. Reading the metrics waits for the step.

        Args:
          metrics: the metrics of a training step; arrays of the devices.
        """
        arrays = {name: np.asarray(array) for name, array in metrics.items()}
        has_tokens = arrays.get(f"{_LANGUAGE}target_tokens", np.zeros(0)) > 0
        values: dict[str, float | int] = {}
        for name, array in arrays.items():
            if not array.shape:
                values[name] = array.item()
            elif name.startswith(_LAYER):
                values |= _by_name(name.removeprefix(_LAYER), self.layers, array)
            elif name.startswith(_LANGUAGE):
                by_language = _by_name(name.removeprefix(_LANGUAGE), self.languages, array)
                pairs = zip(by_language.items(), has_tokens, strict=True)
                values |= dict(item for item, is_present in pairs if is_present)
        if layers := [number for name, number in values.items() if name.startswith(_BUSIEST)]:
            values["busiest_expert"] = sum(layers) / len(layers)
        return values


def _by_name(figure: str, names: Sequence[str], array: np.ndarray) -> dict[str, float]:
    numbers = array.tolist()
    return {f"{figure}/{name}": number for name, number in zip(names, numbers, strict=True)}
