"""TensorFlow is imported when it is first used, and not before."""

import subprocess
import sys

DECLARE = """
import sys
from gshard_nmt.model import steps
from gshard_nmt.model.config import Model
from gshard_nmt.model.optimizer import Optimizer
state = steps.StepFunctions(Model(), Optimizer(), 100, 100).declare_state()
assert "parameters/source_embedding" in state
assert "tensorflow" not in sys.modules
"""


def test_a_model_is_declared_without_tensorflow():
    subprocess.run([sys.executable, "-c", DECLARE], check=True)
