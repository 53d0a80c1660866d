"""The command lines of the examples: help, and mistakes that they explain."""

import conformer
import numpy as np
import pytest
import unet3d
from trainer import Weight


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("conformer", "--mesh 2y2", "--mesh 2y2: give the sizes of two axes, for instance --mesh 2x4."),
        (
            "unet3d",
            "--mesh 1x5",
            "images: dimension D has size 16, which does not divide over the 5 devices of mesh axes "
            "['space']; the nearest legal sizes are 15 or 20.",
        ),
        ("conformer", "--width 30", "--width 30 does not divide over --heads 4; give a width that is"),
        ("unet3d", "--image 6", "--image 6 cannot be halved 2 times, which --levels 3 needs; give a"),
        ("conformer", "--compile_for v9:2x2", "--topology v9:2x2: there is no such topology"),
        ("unet3d", "--compile_for cpu:8", "Mesh.shape [1, 1] is 1 devices; cpu:8 has 8."),
    ],
)  # fmt: skip
def test_a_mistake_is_explained_with_exit_code_2(name, words, message, capsys):
    assert {"conformer": conformer.main, "unet3d": unet3d.main}[name](words.split()) == 2
    assert message in capsys.readouterr().err


def test_weights_start_with_the_variance_of_their_inputs():
    values = Weight("MH", (400, 100), fan_in=400).initial(np.random.default_rng(0))
    assert values.std() == pytest.approx(1 / 20, rel=0.02)
    assert (Weight("M", (4,), constant=1).initial(np.random.default_rng(0)) == 1).all()


@pytest.mark.parametrize("width", [64, 96])
def test_a_conformer_layer_has_23_width_squared_weights(width):
    """GSPMD Table 5. The norms and the convolution over time add a few vectors."""
    model = conformer.build(conformer.Sizes(layers=1, width=width, window=7))
    layer = {name: w for name, w in model.weights.items() if name.startswith("layers/")}
    matrices = [w for name, w in layer.items() if "norm" not in name and "over_time" not in name]
    assert sum(np.prod(w.shape) for w in matrices) == 23 * width**2
    assert sum(np.prod(w.shape) for w in layer.values()) == 23 * width**2 + (6 + 7) * width
