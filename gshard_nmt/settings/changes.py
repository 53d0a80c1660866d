"""The settings of a trained run that decoding may change: `--gin` for Mesh and Decode."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gshard_nmt.errors import UserError
from gshard_nmt.settings.config import Config, Key, named_settings
from gshard_nmt.settings.values import Setting, build
from gshard_nmt.spmd.mesh import MOST_DEVICES, nearest_mesh

CHANGEABLE = ("Mesh", "Decode")
"""The classes whose settings do not belong to the trained model."""

_SHAPE, _AXES, _ORDER = ("Mesh", "shape"), ("Mesh", "axes"), ("Mesh", "device_order")


@dataclasses.dataclass(frozen=True)
class Changes:
    """Settings of Mesh and Decode that replace those of a run."""

    settings: Mapping[Key, Setting] = dataclasses.field(default_factory=dict)

    @property
    def name_a_mesh(self) -> bool:
        return any(class_name == "Mesh" for class_name, _ in self.settings)

    def and_decode(self, values: Mapping[str, Any], where: str) -> "Changes":
        """Returns these changes together with settings of Decode, which replace them."""
        new = {("Decode", name): Setting(value, where) for name, value in values.items()}
        return Changes({**self.settings, **new})

    def apply(self, config: Config) -> Config:
        """Returns the config of a run with these changes.

        A Mesh.shape with one size is the number of devices if the mesh of the run has several axes: they
        are divided over the axes as `nearest_mesh` does. A new shape drops the order of the devices,
        which fits the old shape only.
        """
        if not self.settings:
            return config
        settings = named_settings(config.parts)
        recorded = {k: Setting(v, "config.gin") for k, v in settings.items()}
        new = dict(self.settings)
        if _SHAPE in new:
            new.setdefault(_ORDER, Setting((), "the default"))
            if _AXES not in new:
                new[_SHAPE] = _shape_for_axes(config, new[_SHAPE])
        return build(recorded | new)


def read_changes(statements: Sequence[str], classes: Sequence[str] = CHANGEABLE) -> Changes:
    """Reads the `--gin` flags of a program that decodes. Only these classes may change."""
    if not statements:
        return Changes()
    from gshard_nmt.settings.gin_reader import read_statements

    settings = read_statements(statements)
    for (class_name, field), setting in settings.items():
        if class_name not in classes:
            reason = "has no effect on this program"
            if class_name not in CHANGEABLE:
                reason = "belongs to the trained run, so it cannot change now"
            raise UserError(
                f"{setting.where}: {class_name}.{field} {reason}. Here --gin takes only settings of "
                f"{' and '.join(classes)}."
            )
    return Changes(settings)


def _shape_for_axes(config: Config, shape: Setting) -> Setting:
    """Returns the shape for the axes of the run, if the given shape is only a number of devices."""
    value: Any = shape.value
    axes = config.mesh.axes
    if not isinstance(value, list | tuple) or len(value) == len(axes):
        return shape
    if len(value) == 1 and type(value[0]) is int and 1 <= value[0] <= MOST_DEVICES:
        return Setting(tuple(nearest_mesh(config.mesh, value[0]).shape), shape.where)
    raise UserError(
        f"{shape.where}: Mesh.shape is {list(value)}, and the run has the mesh axes {list(axes)}. Give "
        "each axis one size, or give one number of devices, as in 'Mesh.shape = (8,)'.",
        ["Mesh.shape"],
    )
