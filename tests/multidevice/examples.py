"""Small sizes and a small model, for several tests."""

from gshard_nmt.model.config import Model

WIDTHS = {"model_dim": 16, "hidden_dim": 32, "heads": 2, "head_dim": 8}
WITHOUT_DROPOUT = dict.fromkeys(("input_dropout", "residual_dropout", "attention_dropout"), 0.0)
LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "moe_every": 1}
MOE = Model(**LAYERS, **WIDTHS, experts=8, num_groups=8)
