"""The batches that are counted, and the sums over them."""

import numpy as np

from gshard_nmt.decoding import expert_use
from gshard_nmt.run.arrays import step_functions
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.mesh import Mesh

CONFIG = load_config("demo").replace(
    mesh=Mesh(),
    data={"rows": 4, "source_length": 8, "target_length": 6},
    model={"num_groups": 2, "experts": 4},
)


class Devices:
    """One device, whose program counts target tokens by direction and takes expert 0 for all."""

    mesh = CONFIG.mesh

    def __init__(self) -> None:
        self.batches: list[dict[str, np.ndarray]] = []

    def compile(self, key, lower):
        return self.run

    def put(self, arrays, specs):
        assert {name: array.shape for name, array in arrays.items()} == {
            name: spec.shape for name, spec in specs.items()
        }
        return arrays

    def fetch(self, arrays):
        return arrays

    def run(self, weights, batch):
        assert weights == {"w": 1}
        self.batches.append(batch)
        tokens = np.array([(batch["target_languages"] == i + 1).sum() for i in range(3)], "f")
        chosen = np.zeros((2, 3, 4), "f")
        chosen[..., 0] = 2 * tokens
        counts = {"chosen": chosen, "weight": chosen / 2}
        return [counts | {"tokens": np.stack([tokens, tokens])}]


def pair(first: int, length: int) -> tuple[list[int], list[int]]:
    return [*range(first, first + length - 1), 1], [first, 1]


def count(texts, devices):
    return expert_use.count(CONFIG, step_functions(CONFIG), devices, {"w": 1}, texts)


def test_directions_take_turns_and_batches_are_summed():
    devices = Devices()
    use = count([[pair(10 * i, 4) for i in range(1, 10)], [pair(200, 4)], []], devices)
    assert use.layers == ["encoder_1", "decoder_1"]
    first, second = devices.batches
    # Two sentences fit into a row. The only sentence of the second direction has its turn early.
    assert first["source_languages"][0].tolist() == [1] * 4 + [2] * 4
    assert first["source_ids"][0, 4] == 200
    assert (second["source_segments"][2:] == 0).all()
    assert use.tokens.tolist() == [[18, 2, 0]] * 2
    assert use.chosen[0, 0].tolist() == [36, 0, 0, 0]
    assert use.weight.sum() == 2 * 20
    assert use.left_out.tolist() == [0, 0, 0]


def test_sentences_that_are_empty_or_too_long_are_left_out():
    use = count([[pair(10, 9), pair(20, 8), ([], [])], [([7, 1], [7] * 7)], []], Devices())
    assert use.left_out.tolist() == [2, 1, 0]
    assert use.tokens[0].tolist() == [2, 0, 0]
