"""What a run is made of, once its config files have been read."""

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gshard_nmt.data.config import Data
    from gshard_nmt.decode import Decode
    from gshard_nmt.model.optimizer import Optimizer
    from gshard_nmt.model.transformer import Model
    from gshard_nmt.spmd.mesh import Mesh
    from gshard_nmt.train import Train


@dataclasses.dataclass(frozen=True)
class Config:
    """The resolved configuration of one run.

    Attributes:
      model, mesh, data, optimizer, train, decode: the configured parts.
      text: the same as gin text, every field explicit; what a run folder keeps as `config.gin`.
    """

    model: "Model"
    mesh: "Mesh"
    data: "Data"
    optimizer: "Optimizer"
    train: "Train"
    decode: "Decode"
    text: str
