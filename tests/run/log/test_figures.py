"""Vectors of the metrics become numbers with names."""

import json

import numpy as np

from gshard_nmt.run.log.figures import FigureNames

NAMES = FigureNames(["encoder_1", "decoder_1"], ["fr", "de", "ga"])


def test_each_layer_and_each_language_of_the_batch_has_a_name():
    values = NAMES.values(
        {
            "loss": np.float32(2.5),
            "status": np.int32(0),
            "tokens_seen": np.zeros((3, 2), np.uint32),
            "busiest_expert": np.float32(
                2
            ),  # of the sums over layers, whose experts are not the same
            "layer_busiest_expert": np.array([4, 3], np.float32),
            "layer_overflow_fraction": np.array([0.25, 0.5], np.float32),
            "language_target_tokens": np.array([7, 0, 2], np.float32),
            "language_nll": np.array([1.5, 0, 2], np.float32),
        }
    )
    assert values == {
        "loss": 2.5,
        "status": 0,
        "busiest_expert": 3.5,
        "busiest_expert/encoder_1": 4,
        "busiest_expert/decoder_1": 3,
        "overflow_fraction/encoder_1": 0.25,
        "overflow_fraction/decoder_1": 0.5,
        "target_tokens/fr": 7,
        "target_tokens/ga": 2,
        "nll/fr": 1.5,
        "nll/ga": 2,
    }
    assert json.loads(json.dumps(values)) == values
