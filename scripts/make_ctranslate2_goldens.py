"""Writes the names of the variables of CTranslate2's models, as its own converters have them.

    python -m scripts.make_ctranslate2_goldens tests/exchange/goldens/ctranslate2.json

It needs ctranslate2 and numpy, which the project itself does not install (ctranslate2). Variables that a
converter must set are "needed", all others "optional".
"""

import json
import sys
from pathlib import Path
from typing import Any

from ctranslate2.specs import common_spec, model_spec, transformer_spec

LAYERS = (2, 1)
HEADS = 2
MODELS: dict[str, dict[str, Any]] = {
    "relative": {"relative_attention_bias": True, "rms_norm": True},
    "geglu": {
        "relative_attention_bias": True,
        "rms_norm": True,
        "ffn_glu": True,
        "activation": common_spec.Activation.GELUTanh,
    },
    "m2m_100": {},
    "marian": {"pre_norm": False},
    "learned": {},
}
"""The arguments of `TransformerSpec.from_config` for each model of tests/exchange/test_ctranslate2.py."""


def variables(spec: Any, place: str = "") -> dict[str, bool]:
    found: dict[str, bool] = {}
    for name, value in vars(spec).items():
        if name.startswith("_"):
            continue
        if isinstance(value, model_spec.LayerSpec):
            found |= variables(value, f"{place}{name}/")
        elif isinstance(value, list):
            for number, part in enumerate(value):
                found |= variables(part, f"{place}{name}_{number}/")
        else:
            found[place + name] = value is None
    return found


def main() -> None:
    golden = {}
    for name, arguments in MODELS.items():
        spec = transformer_spec.TransformerSpec.from_config(LAYERS, HEADS, **arguments)
        names = variables(spec)
        golden[name] = {
            "needed": sorted(name for name, needed in names.items() if needed),
            "optional": sorted(name for name, needed in names.items() if not needed),
        }
    Path(sys.argv[1]).write_text(json.dumps(golden, indent=0) + "\n")


if __name__ == "__main__":
    main()
