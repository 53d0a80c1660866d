"""The numbers in the words of docs/paper_tables.md, computed from the tables of the page itself.

`facts` gives each number a name, and the words of paper_notes.py have these names in braces. So words and
tables cannot disagree, whichever rows have been compiled again.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import paper_examples
import paper_switch
from paper_merge import KEY_CELLS, Section
from paper_page import V3_CORE_PEAK
from paper_rows import SPLIT_SIZE, WHOLE_SIZE

from gshard_nmt.inspection.papers import REPORTED
from gshard_nmt.settings.gin_reader import load_config

LOWEST, HIGHEST = 0.8, 1.25
"""A predicted figure contradicts the printed one if their ratio is outside these bounds."""

PRINTED = {
    # GShard, sections 4 and 5.
    "printed_step_growth": 1.7,
    "printed_roofline_128": 70,
    "printed_roofline_2048": 48,
    "printed_figure9_growth": 9,
    "printed_share_128": 16,
    "printed_share_2048": 36,
    "printed_share_growth": 3.75,
    "printed_recomputation": 28,
    "printed_days": 4,
    "printed_experts_36": "36,684",
    "printed_experts_12": "12,228",
    "counted_experts_36": f"{2048 * 36 // 2:,}",
    "counted_experts_12": f"{2048 * 12 // 2:,}",
    "dense_days": 42,
    "dense_weights": "2.3",
    "dense_heads": 64,
    "printed_heads": 128,
    "printed_xxl_experts": 64,
    "training_tokens": "1.0T",
    "half_tokens": "0.5T",
    "small_batch": "1M",
    "small_batch_of_core": f"{2**20 // 128:,}",
    "steps_of_a_second_128e": 0.67,
    "days_128e": 17.3,
}
"""What the papers print beside their tables, and what follows from it."""

_STEPS_OF_A_TRILLION = 10**12 / 2**22


class Rows(dict[tuple[str, ...], dict[str, str]]):
    """The rows of a section's table: column -> cell, by the first cells.

    A column "predicted" or "compiled" has the name of the printed column before it.
    """

    def __init__(self, section: Section) -> None:
        names: list[str] = []
        for name in map(
            str.strip, section.header[0].strip("|").split("|") if section.header else ()
        ):
            after = names[-1] if names else ""
            is_pair = name in ("predicted", "compiled") and after.endswith(", printed")
            names.append(after.removesuffix(", printed").split(",")[0] if is_pair else name)
        for key, line in section.rows.items():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            self[key] = dict(zip(names, cells, strict=True))

    def number(self, key: str, column: str) -> float:
        value = number(self[tuple(key.split("|"))][column])
        if value is None:
            raise KeyError(f"{key}, {column}")
        return value

    def column(self, column: str, rows: Sequence[str]) -> list[float]:
        return [self.number(row, column) for row in rows]


def number(cell: str) -> float | None:
    match = re.match(r"[\d,]*\.?\d+", cell)
    return float(match[0].replace(",", "")) if match else None


def ratios(sections: Mapping[str, Section], figure: str) -> Iterator[tuple[str, float, float]]:
    """Yields (row, printed, compiled) of every row of the page that has both.

    Args:
      sections: the sections of the page.
      figure: "step s" or "TFLOP".
    """
    for title, section in sections.items():
        for key, cells in Rows(section).items():
            printed = number(cells.get(f"{figure}, printed", ""))
            compiled = number(cells.get(figure, ""))
            if printed and compiled:
                name = key[0]
                if title in KEY_CELLS:
                    name = f"{title.partition(':')[0]}: {', '.join(key)}"
                yield name, printed, compiled


def is_contradiction(printed: float, compiled: float) -> bool:
    return not LOWEST <= compiled / printed <= HIGHEST


def facts(sections: Mapping[str, Section]) -> dict[str, object]:
    numbers: dict[str, object] = PRINTED | _configs()
    for compute in (_gshard, _growth, _links, _gspmd, _pipelines, _unet):
        numbers |= compute({title: Rows(section) for title, section in sections.items()})
    return numbers


def _title(rows: Mapping[str, Rows], start: str) -> Rows:
    return next(rows[title] for title in rows if title.startswith(start))


def _range(values: Sequence[float], form: str = ".0f") -> str:
    return f"{min(values):{form}} to {max(values):{form}}"


def _configs() -> dict[str, object]:
    gpipe, pipeline = load_config("dense_96l_gpipe"), load_config("gspmd_narrow_16b_pipeline")
    switch = load_config("switch_c")
    moe, group_devices = switch.model.moe(training=True), switch.mesh.axis_size(("member",))
    rows, slots = switch.data.rows, []
    for length in (switch.data.source_length, switch.data.target_length):
        tokens = rows * length // moe.groups(rows, length)
        slots.append(moe.gating.slots(tokens) * switch.model.experts)
    return {
        "gpipe_stages": gpipe.model.stages,
        "gpipe_microbatches": gpipe.train.microbatches,
        "pipeline_rows": f"{pipeline.data.rows:,}",
        "pipeline_length": f"{pipeline.data.target_length:,}",
        "pipeline_cores": pipeline.mesh.num_devices,
        "group_slots": f"{slots[0]:,}",
        "spread_slots": f"{sum(slots) // group_devices:,}",
        # Each expert of a small group has one slot.
        "whole_slots": f"{2 * switch.model.experts:,}",
        "layer_tokens": f"{paper_switch.ROWS * paper_switch.LENGTH:,}",
        "split_size": SPLIT_SIZE,
        "whole_size": WHOLE_SIZE,
        "conformer_width": f"{paper_examples.WIDTH:,}",
        "conformer_frames": paper_examples.FRAMES,
    }


def _gshard(rows: Mapping[str, Rows]) -> dict[str, object]:
    table, time = _title(rows, "GShard"), _title(rows, "Time of the whole step")
    models = {name: REPORTED[name][0] for name in REPORTED if re.fullmatch(r"moe_\d+e_\d+l", name)}
    steps = dict(zip(models, table.column("step s", list(models)), strict=True))
    # The time of all cores for each token, but for a constant.
    costs = {
        name: paper.mesh[0] * steps[name] / paper.batch_tokens for name, paper in models.items()
    }
    printed_costs = {name: paper.core_years or 0.0 for name, paper in models.items()}
    largest, small = "moe_2048e_36l", "moe_128e_36l"
    halves = ("moe_128e_36l", "moe_128e_12l")
    needed = [
        100 * 1e12 * table.number(name, "TFLOP") / V3_CORE_PEAK / models[name].step_seconds
        for name in halves
    ]
    dense = 100 * 1e12 * table.number("dense_96l", "TFLOP") / V3_CORE_PEAK
    return {
        "cost_growth": f"{costs[largest] / costs[small]:.2f}",
        "printed_cost_growth": f"{printed_costs[largest] / printed_costs[small]:.1f}",
        "weights_growth": f"{models[largest].weights / models[small].weights:.0f}",
        "cost_order": ", ".join(sorted(costs, key=costs.__getitem__, reverse=True)),
        "printed_cost_order": ", ".join(
            sorted(printed_costs, key=printed_costs.__getitem__, reverse=True)
        ),
        "days": f"{steps[largest] * _STEPS_OF_A_TRILLION / 86400:.1f}",
        "roofline_2048": f"{time.number(largest, 'of roofline'):.0f}",
        "roofline_128": f"{time.number(small, 'of roofline'):.0f}",
        "recomputed_12": _range(
            time.column("computed again", [name for name in models if name.endswith("12l")])
        ),
        "recomputed_36": _range(
            time.column("computed again", [name for name in models if name.endswith("36l")])
        ),
        "needed_of_peak": _range(needed),
        "dense_of_peak": f"{dense / table.number('dense_96l', 'step s, printed'):.1f}",
        "ratios_2048": _range(
            [steps[n] / models[n].step_seconds for n in ("moe_2048e_36l", "moe_2048e_12l")], ".2f"
        ),
        "ratios_512": _range(
            [steps[n] / models[n].step_seconds for n in ("moe_512e_36l", "moe_512e_12l")], ".2f"
        ),
    }


def _growth(rows: Mapping[str, Rows]) -> dict[str, object]:
    growth, forward = _title(rows, "From 8 cores"), _title(rows, "Time of the layers")
    layers = {
        key[0]: {kind: number(cell) or 0.0 for kind, cell in list(cells.items())[1:]}
        for key, cells in forward.items()
    }
    whole = {cores: sum(kinds.values()) for cores, kinds in layers.items()}
    sent = {
        cores: kinds["dispatch and combine (all-to-all), ms"] for cores, kinds in layers.items()
    }
    experts = [kinds["experts, ms"] for kinds in layers.values()]

    def grown(column: str, few: str) -> float:
        return growth.number("2,048", column) / growth.number(few, column)

    return {
        "step_growth": f"{grown('step s', '128'):.2f}",
        "layers_growth": f"{whole['2,048'] / whole['128']:.2f}",
        "experts_ms": _range(experts, ".1f"),
        "share_128": f"{100 * sent['128'] / whole['128']:.0f}",
        "share_2048": f"{100 * sent['2,048'] / whole['2,048']:.0f}",
        "exchange_growth_8": f"{grown('all-to-all ms', '8'):.0f}",
        "exchange_growth_128": f"{grown('all-to-all ms', '128'):.0f}",
        "root_8": f"{(2048 / 8) ** 0.5:.0f}",
        "compile_growth": f"{100 * (grown('compile s', '8') - 1):.0f}",
        "memory_growth": f"{100 * (grown('GiB a core', '8') - 1):.0f}",
    }


def _links(rows: Mapping[str, Rows]) -> dict[str, object]:
    links = _title(rows, "Collectives against")
    few, many = (links.number(cores, "all-to-all 8 MB, ms") for cores in ("16", "2,048"))
    return {"figure9_growth": f"{many / few:.0f}", "root_16": f"{(2048 / 16) ** 0.5:.0f}"}


def _gspmd(rows: Mapping[str, Rows]) -> dict[str, object]:
    wide, narrow = _title(rows, "GSPMD table 2"), _title(rows, "GSPMD table 3")
    sparse, hybrid = _title(rows, "GSPMD table 6"), _title(rows, "GSPMD table 7")
    utilization = [
        [
            100
            * 1e12
            * wide.number(row[0], f"TFLOP{which}")
            / V3_CORE_PEAK
            / wide.number(row[0], f"step s{which}")
            for row in wide
        ]
        for which in (", printed", "")
    ]
    first, last = "gspmd_moe_10b", "gspmd_moe_577b"
    others = [key[0] for key in sparse if key[0] != last]
    step, printed = ("step s", "step s, printed")
    growth = {
        name: f"{sparse.number(last, column) / sparse.number(first, column):.2f}"
        for name, column in (("sparse_growth", step), ("printed_sparse_growth", printed))
    }
    flops = {
        name: f"{sparse.number(first, column):.0f} to {sparse.number(last, column):.0f}"
        for name, column in (("sparse_flops", "TFLOP"), ("printed_sparse_flops", "TFLOP, printed"))
    }
    return {
        **growth,
        **flops,
        "sparse_ratio": f"{sparse.number(last, step) / sparse.number(last, printed):.2f}",
        "sparse_ratios": _range(
            [sparse.number(n, step) / sparse.number(n, printed) for n in others], ".2f"
        ),
        "hybrid_flops": _range(
            [hybrid.number(n[0], "TFLOP") / hybrid.number(n[0], "TFLOP, printed") for n in hybrid],
            ".2f",
        ),
        "printed_utilization": _range(utilization[0]),
        "utilization": _range(utilization[1]),
        "narrow_growth": "{:.2f}".format(
            narrow.number("gspmd_narrow_8x32", printed)
            / narrow.number("gspmd_narrow_32x8", printed)
        ),
    }


def _pipelines(rows: Mapping[str, Rows]) -> dict[str, object]:
    table, narrow = _title(rows, "GSPMD table 4"), _title(rows, "GSPMD table 3")
    numbers: dict[str, object] = {}
    for prefix, column in (("", "step s"), ("printed_", "step s, printed")):
        # A mesh counts with its best number of microbatches. The last one has fewer rows in parallel.
        steps: dict[str, float] = {}
        for key, cells in table.items():
            steps[key[0]] = min(number(cells[column]) or 0.0, steps.get(key[0], float("inf")))
        best = min(steps, key=steps.__getitem__)
        flat = narrow.number("gspmd_narrow_32x8", column) * 1024 / 192
        numbers[f"{prefix}fastest"] = best
        numbers[f"{prefix}slowest"] = max(steps, key=steps.__getitem__)
        numbers[f"{prefix}slower_than_2d"] = f"{100 * (steps[best] / flat - 1):.0f}"
    return numbers


def _unet(rows: Mapping[str, Rows]) -> dict[str, object]:
    table = _title(rows, "GSPMD table 8")
    keys = ["|".join(key) for key in table]
    shares = [
        100 * table.number(key, "TFLOP") / table.number(key, "TFLOP, printed") for key in keys
    ]
    few, many = (next(k for k in keys if k.startswith(mesh)) for mesh in ("2x32", "4x16"))
    return {
        "unet_flops": _range(shares),
        "unet_speedup": f"{table.number(many, 'step s') / table.number(few, 'step s'):.1f}",
        "printed_unet_speedup": "{:.1f}".format(
            table.number(many, "step s, printed") / table.number(few, "step s, printed")
        ),
    }
