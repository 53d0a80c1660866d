"""The size of a run and the cost of its training, read from its run folder."""

import math
from collections.abc import Sequence

from gshard_nmt.evaluation.systems.systems import Budget
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_run_config

DAY = 24 * 60 * 60
"""Seconds."""
YEAR = 365.25 * DAY
"""Seconds."""


def budget_of(run: RunFolder) -> Budget:
    """Returns the budget of a run.

    The devices are those of the mesh in its config. If a run was resumed on another mesh, its
    device-years are those of the last mesh.

    Raises:
      UserError: a file of the run folder is damaged.
    """
    config = read_run_config(run.config)
    model, devices = config.model, math.prod(config.mesh.shape)
    known = Budget(
        experts=model.experts,
        layers=model.encoder_layers + model.decoder_layers,
        devices=devices,
    )
    record = run.budget()
    if not record:
        return known
    steps, seconds = record["steps"], record["seconds"]
    tokens = sum(record["tokens_by_language"].values())
    return Budget(
        weights=record["parameters"],
        experts=known.experts,
        layers=known.layers,
        steps=steps,
        tokens=tokens,
        devices=devices,
        steps_per_second=steps / seconds if seconds else None,
        batch_tokens=tokens / steps if steps else None,
        device_years=devices * seconds / YEAR,
        days=seconds / DAY,
    )


def total_budget(budgets: Sequence[Budget]) -> Budget:
    """Returns the cost of several models together, such as all bilingual baselines.

    A sum is None if a part of it is unknown. The models may differ in size, so speed and batch size stay
    unknown; the days are those of training one model after the other.
    """

    def total(name: str) -> float | None:
        values = [getattr(budget, name) for budget in budgets]
        return None if None in values or not values else sum(values)

    whole = {
        name: None if (value := total(name)) is None else int(value)
        for name in ("weights", "steps", "tokens")
    }
    return Budget(**whole, device_years=total("device_years"), days=total("days"))
