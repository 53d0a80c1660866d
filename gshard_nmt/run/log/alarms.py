"""Alarms: warnings about values in the log that the user should look at during the run."""

from collections.abc import Mapping, Sequence

LINES = 3
"""The number of log lines in a row that must agree before an alarm starts or ends."""

FIGURE = "effective_experts"


class CollapseAlarm:
    """Warns if few experts of an MoE layer get most of its tokens, and reports when this is over.

    A layer has collapsed if its effective experts, exp(entropy of the load), are fewer than a quarter of
    E in LINES log lines in a row. If E is 4 or less, a quarter of E is at most 1. The limit is then 1.1,
    because the value is 1 if one expert gets all tokens.

    The counts are not saved with a checkpoint. A run that is resumed counts anew, so it warns again after
    LINES log lines: its new log would else not mention a collapse that has begun before.
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
            # All comparisons with NaN are false, so NaN neither starts nor ends an alarm.
            changes = value >= self._limit if is_collapsed else value < self._limit
            self._lines[layer] = self._lines[layer] + 1 if changes else 0
            if self._lines[layer] < LINES:
                continue
            self._lines[layer] = 0
            (ended if is_collapsed else started).append(
                f"{layer} ({value:.1f} effective experts of {self._experts})"
            )
            self._collapsed ^= {layer}
        lines = []
        if started:
            lines.append(
                f"ALARM: few experts get most tokens in {', '.join(started)}; raise "
                "Model.aux_loss_weight or lower Optimizer.learning_rate"
            )
        if ended:
            lines.append(f"the experts share the tokens again in {', '.join(ended)}")
        return "; ".join(lines)
