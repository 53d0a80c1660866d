"""Alarms: something in the log that a user should look at while the run goes on."""

from collections.abc import Mapping, Sequence

LINES = 3
"""The number of log lines in a row that must agree before an alarm starts or ends."""

FIGURE = "effective_experts"


class CollapseAlarm:
    """Says when the tokens of an MoE layer use few of its experts, and when this is over.

    A layer has collapsed if its effective experts, exp(entropy of the load), are fewer than a quarter of
    E for some log lines in a row. With few experts, a quarter would be 1 or less. The limit is then
    slightly above 1, which is the value if one expert gets all tokens.
    """

    def __init__(self, experts: int, layers: Sequence[str]) -> None:
        """Starts without an alarm.

        Args:
          experts: E; 0 in a dense model.
          layers: the names of the MoE layers.
        """
        self._experts, self._layers = experts, layers
        self._limit = max(experts / 4, 1.1)
        self._lines = dict.fromkeys(layers, 0)
        self._collapsed: set[str] = set()

    def check(self, values: Mapping[str, float]) -> str:
        """Returns a line to show, or "" if nothing has changed since the last log line.

        Args:
          values: the named figures of the log line, such as `effective_experts/encoder_1`.
        """
        started: list[str] = []
        ended: list[str] = []
        for layer in self._layers:
            value = values[f"{FIGURE}/{layer}"]
            is_collapsed = layer in self._collapsed
            # A figure that is not a number changes nothing.
            changes = value >= self._limit if is_collapsed else value < self._limit
            self._lines[layer] = self._lines[layer] + 1 if changes else 0
            if self._lines[layer] < LINES:
                continue
            self._lines[layer] = 0
            (ended if is_collapsed else started).append(f"{layer} ({value:.1f} of {self._experts})")
            self._collapsed ^= {layer}
        lines = []
        if started:
            lines.append(
                f"ALARM: few experts get most tokens in {', '.join(started)}, counted as effective "
                "experts; raise Model.aux_loss_weight or lower Optimizer.learning_rate"
            )
        if ended:
            lines.append(f"the experts share the tokens again in {', '.join(ended)}")
        return "; ".join(lines)
