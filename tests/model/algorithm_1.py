"""GShard Algorithm 1 as it is printed: one token after another, in plain NumPy."""

import dataclasses

import numpy as np


@dataclasses.dataclass
class Gated:
    """The result of Algorithm 1 for one group."""

    # for each token, (expert, slot, weight) of the choices that it kept
    triples: list[list[tuple[int, int, float]]]
    aux_loss: float  # l_aux, in the paper's scale


def top2_gating(
    gates: np.ndarray,
    capacity: int,
    draw: np.ndarray | None = None,
    is_token: np.ndarray | None = None,
    dropped_takes_slot: bool = True,
) -> Gated:
    """Computes Algorithm 1, line by line, from float[S, E] gates.

    `draw`, float[S] in [0, 1), is `rnd` of the second pass; None keeps every second choice. `is_token` is
    False for padding, which the paper leaves out. As printed, `c_e2 += 1` stands outside the `if`. In the
    authors' code (not `dropped_takes_slot`) a second choice that the draw drops is not counted.
    """
    tokens, experts = gates.shape
    is_token = np.ones(tokens, bool) if is_token is None else is_token
    count = np.zeros(experts, int)
    kept: list[list[tuple[int, int, float]]] = [[] for _ in range(tokens)]
    order = np.argsort(-gates, axis=1, kind="stable")
    for s in range(tokens):
        if not is_token[s]:
            continue
        e1, e2 = order[s, :2]
        w1 = gates[s, e1] / (gates[s, e1] + gates[s, e2])
        if count[e1] < capacity:
            kept[s].append((int(e1), int(count[e1]), float(w1)))
        count[e1] += 1
    aux_loss = float(np.mean(count / tokens * (gates * is_token[:, None]).mean(axis=0)))
    for s in range(tokens):
        if not is_token[s]:
            continue
        e1, e2 = order[s, :2]
        w2 = gates[s, e2] / (gates[s, e1] + gates[s, e2])
        drawn = draw is None or 2 * w2 > draw[s]
        if count[e2] < capacity and drawn:
            kept[s].append((int(e2), int(count[e2]), float(w2)))
        if drawn or dropped_takes_slot:
            count[e2] += 1
    return Gated(kept, aux_loss)
