"""This package as a translator of benchmarks/decoding.py, which starts it.

The weights are drawn from the model's initializers. Three changes of them forbid the end of a sentence,
so that every search makes all of its steps. Coordinate 0 of the residual stream of the decoder is a
positive constant: all target embeddings have it, and no sub-layer writes to it. The end of a sentence
has a large negative number there, so its logit is far below all others. The length norm prefers the
longest translation.
"""

import importlib.metadata
from pathlib import Path

import numpy as np
from harness.turns import take_turns
from translators.workload import Workload

from gshard_nmt.decoding.translator import Translator
from gshard_nmt.model.parameters import Parameter
from gshard_nmt.run.arrays import step_functions, weight_specs
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import runtime

EOS = 1
CONSTANT, FORBIDDEN = 4.0, -1e5
"""Coordinate 0 of the target embedding: of all tokens, and of the end of a sentence."""


def main() -> None:
    workload = Workload.of_command_line(__doc__)
    config = config_of(workload)
    functions = step_functions(config)
    # XLA divides the work of a program among the cores that it sees when it compiles.
    programs = Path(workload.folder) / f"programs-{len(workload.cores)}-cores"
    devices = runtime.start(config.mesh, programs)
    rng = np.random.default_rng(1)
    arrays = {name: draw(p, rng) for name, p in functions.declare_parameters().items()}
    forbid_end(arrays)
    weights = devices.put(arrays, weight_specs(functions))
    translator = Translator(config, functions, devices, weights)
    sources = workload.sources(EOS)

    def translate() -> list[int]:
        # The end of a sentence is the last token of a translation, but not among its ids.
        return [len(nbest[0][0]) + 1 for nbest in translator.translate_ids(sources)]

    versions = {name: importlib.metadata.version(name) for name in ("jaxlib", "tensorflow")}
    take_turns(workload.checked(translate), lambda: {"versions": versions})


def config_of(workload: Workload) -> Config:
    settings = {
        "Mesh.shape": (workload.parts,),
        **workload.sizes,
        "Decode.beam": workload.beam,
        "Decode.alpha": 10.0,
        "Decode.rows": workload.sentences,
        "Decode.source_lengths": (workload.source_tokens,),
        "Decode.length_ratio": 0.0,
        "Decode.length_margin": workload.target_tokens,
    }
    if workload.experts:
        settings |= {"EXPERTS": workload.experts, "Model.expert_hidden_dim": workload.hidden_dim}
    bindings = [f"{name} = {value!r}" for name, value in settings.items()]
    return load_config("demo" if workload.experts else "baseline", [*bindings, *workload.settings])


def draw(parameter: Parameter, rng: np.random.Generator) -> np.ndarray:
    kind, scale = parameter.initializer.kind, parameter.initializer.scale
    if kind == "normal":
        values = rng.normal(0.0, scale, parameter.shape)
    elif kind == "uniform":
        values = rng.uniform(-scale, scale, parameter.shape)
    else:
        values = np.full(parameter.shape, scale)
    return values.astype(parameter.dtype)


def forbid_end(weights: dict[str, np.ndarray]) -> None:
    outputs = ("output", "wo")
    for name, array in weights.items():
        if name.startswith("decoder/") and name.rpartition("/")[2] in outputs:
            array[..., 0] = 0.0
    weights["target_embedding"][:, 0] = CONSTANT
    weights["target_embedding"][EOS, 0] = FORBIDDEN


if __name__ == "__main__":
    main()
