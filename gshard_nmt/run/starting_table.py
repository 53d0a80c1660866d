"""The table of what each array of a run begins as, if the run starts from another run."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from gshard_nmt.data.text.vocabulary_match import RowMatch
from gshard_nmt.model import inheritance
from gshard_nmt.model.inheritance import Origins
from gshard_nmt.run.arrays import as_groups
from gshard_nmt.spmd.lowering import ArraySpecs


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
      array: the name of a weight in the model, or of another array in the state.
      shape: its dimensions.
      begins: what it begins as; of an old weight, which part is left out.
      moments: "kept", "new", or "frozen" if training does not change the weight; "" for other arrays.
    """

    array: str
    shape: tuple[int, ...]
    begins: str
    moments: str = ""


def rows_of(
    specs: ArraySpecs,
    old_specs: ArraySpecs,
    origins: Mapping[str, Origins],
    rows: Mapping[str, RowMatch],
    with_moments: Collection[str],
) -> list[Row]:
    """Returns a row for each weight with its moments, each other array, and each old weight left out.

    Args:
      specs: the arrays of the state.
      old_specs: the weights of the other run.
      origins: what each weight begins with.
      rows: for each weight with a row for each piece, the rows that it takes over.
      with_moments: the weights whose moments are taken over.
    """
    groups = as_groups(specs)
    moments = [name for name in groups["optimizer"] if name.startswith("moments/")]
    trained = {name.split("/", 2)[2] for name in moments}
    table = []
    for name, spec in groups["parameters"].items():
        origin = origins[name][0]
        if origin and origin.resized == "V":
            begins = rows[name].text
        else:
            begins = inheritance.describe(name, origins[name], old_specs, spec)
        state = "kept" if name in with_moments else "new" if name in trained else "frozen"
        table.append(Row(name, spec.shape, begins, state))
    others = {name: "new" for name in groups["optimizer"] if name not in moments}
    table += [Row(name, specs[name].shape, begins) for name, begins in others.items()]
    if "ema" in groups:
        table.append(Row("ema/*", (), "as the weights"))
    left_out = inheritance.left_out(origins, old_specs)
    return table + [
        Row(name, old_specs[name].shape, f"left out: {part}") for name, part in left_out.items()
    ]


def as_text(rows: Sequence[Row]) -> str:
    """Returns the rows as aligned text."""
    cells = [("array", "shape", "moments", "begins as")]
    for row in rows:
        shape = "x".join(map(str, row.shape)) or "scalar"
        cells.append((row.array, shape, row.moments, row.begins))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def summary(rows: Sequence[Row]) -> str:
    """Returns how many weights were copied, changed, new and left out, in words."""
    weights = [row for row in rows if row.moments]
    copied = sum(row.begins == "copied" for row in weights)
    new = sum(row.begins.startswith("new") for row in weights)
    left_out = sum(row.begins.startswith("left out") for row in rows)
    return (
        f"of {len(weights)} weights, {copied} copied, {len(weights) - copied - new} changed, {new} new; "
        f"old weights left out, as a whole or in part: {left_out}"
    )
