"""The tables and sentences of a report: the terminal and the page show the same ones."""

from collections.abc import Iterable, Sequence

from gshard_nmt.inspection.communication import Source
from gshard_nmt.inspection.compute import Work
from gshard_nmt.inspection.papers import reported
from gshard_nmt.inspection.record import Inspection
from gshard_nmt.inspection.tables import (
    BYTES,
    COUNT,
    FLOPS,
    LABEL,
    LONG_SECONDS,
    MILLISECONDS,
    SHARE,
    STEP_SECONDS,
    YEARS,
    Column,
    Table,
    Value,
    share,
)
from gshard_nmt.quantities import flops_text, size_text
from gshard_nmt.spmd.chips import Gpu
from gshard_nmt.spmd.program import COLLECTIVE_KINDS
from gshard_nmt.spmd.topology import Topology

_NO_TIMES = "times are predicted for TPUs and GPUs only"
ESTIMATED = "estimated, because there is no program"
_LEFT_OUT = "Overlap, the host, the input and load imbalance are left out."
_PREDICTED = (
    "Predicted from the compiler's estimate of each operation and the links' peak bandwidth. "
    f"{_LEFT_OUT}"
)
_PREDICTED_FOR_GPUS = (
    "Predicted from the roofline of each kernel and the links' peak bandwidth, so a step takes longer. "
    f"The start of kernels and the memory of libraries are left out too. {_LEFT_OUT}"
)

_CATEGORY_WORDS = {
    "replicated_weights": "replicated weights",
    "sharded_weights": "sharded weights",
    "optimizer": "optimizer",
    "batch": "batch",
    "activations": "activations and gradients",
}


def summary(inspections: Sequence[Inspection], tokens: float) -> Table:
    """Returns the main figures, with a row for each topology.

    Args:
      inspections: one config on one or more topologies.
      tokens: number of training tokens of the run whose cost is given.
    """
    columns = [
        *(Column("topology"), Column("devices", COUNT), Column("mesh", LABEL)),
        *(Column("parameters", COUNT), Column("active per token", COUNT)),
        *(Column("parameters on each device", COUNT), Column("tokens of a step", COUNT)),
        *(Column("peak", BYTES), Column("the device has", BYTES), Column("fits", LABEL)),
        *(Column("step", STEP_SECONDS), Column("share of roofline", SHARE)),
        *(Column("share of peak FLOPS", SHARE), Column("tokens per second", COUNT)),
        Column(f"device-years for {tokens:.3g} tokens", YEARS),
        *(Column("all-to-all", COUNT), Column("all-reduce", COUNT)),
        *(Column("lowering", LONG_SECONDS), Column("compiling", LONG_SECONDS)),
        *(Column("compile CPU", LONG_SECONDS), Column("instructions", COUNT)),
        Column("code", BYTES),
    ]
    return Table(
        "Summary",
        "The main figures. Times of a step are predicted. The counts of all-to-all and all-reduce are "
        "the tensors that they send in a step.",
        columns,
        [_summary_row(inspection, tokens) for inspection in inspections],
    )


def _summary_row(inspection: Inspection, tokens: float) -> list[Value]:
    counts, memory, compilation = inspection.counts, inspection.memory, inspection.compilation
    step = inspection.step_seconds
    return [
        *(inspection.topology.name, inspection.topology.num_devices, mesh_text(inspection)),
        *(counts.total, counts.active_per_token, counts.per_device, inspection.tokens_per_step),
        *(memory.peak, memory.hbm, _fits(inspection)),
        *(step, inspection.roofline_fraction, inspection.flops_utilization),
        inspection.tokens_per_step / step if step else None,
        inspection.device_years(tokens),
        *(
            inspection.kind_count(kind) if inspection.has_program else None
            for kind in ("all-to-all", "all-reduce")
        ),
        *(compilation.lower_seconds, compilation.compile_seconds),
        *(compilation.compile_cpu_seconds, compilation.instructions, memory.code or None),
    ]


def _fits(inspection: Inspection) -> str | None:
    if inspection.memory.hbm is None:
        return None
    return "yes" if inspection.fits else "no"


def mesh_text(inspection: Inspection) -> str:
    """Returns the axes of the mesh with their sizes: "x=8 x y=4"."""
    return " x ".join(f"{name}={size}" for name, size in inspection.mesh.items())


def memory(inspection: Inspection) -> Table:
    """Returns the memory of one device by category."""
    memory = inspection.memory
    totals: list[list[Value]] = [["peak", memory.peak, ""]]
    if memory.hbm:
        left = memory.hbm - memory.peak
        totals.append(["the device has", memory.hbm, ""])
        totals.append(["free" if left >= 0 else "missing", abs(left), ""])
    return Table(
        "Memory of one device",
        "What is in the memory of a device when it is fullest. The categories are those of GShard's "
        "Figure 7.",
        [Column("category"), Column("size", BYTES), Column("share of the peak", SHARE)],
        [
            [_CATEGORY_WORDS[name], size, share(size, memory.peak)]
            for name, size in memory.by_category.items()
        ],
        totals,
    )


def memory_lines(inspection: Inspection) -> list[str]:
    """Returns the sizes that the compiler counts, or the line that it made no program."""
    memory = inspection.memory
    if memory.argument is None:
        return [ESTIMATED]
    assert memory.temp is not None
    assert memory.output is not None
    assert memory.alias is not None
    return [
        f"the compiler counts: arguments {size_text(memory.argument)}, temporaries "
        f"{size_text(memory.temp)}, outputs {size_text(memory.output)} "
        f"({size_text(memory.alias)} of them reuse the arguments' memory)"
    ]


def temporaries(inspection: Inspection) -> Table:
    """Returns the largest temporaries."""
    return Table(
        "largest temporaries at the peak",
        "The largest arrays of one device that are alive when the temporaries take the most memory.",
        [Column("array on one device"), Column("size", BYTES), Column("made by")],
        [
            [temporary.shape, temporary.bytes, temporary.origin.place]
            for temporary in inspection.temporaries
        ],
    )


def collective_kinds(inspection: Inspection) -> Table:
    """Returns number, bytes and time of the collectives of each kind."""
    rows: list[list[Value]] = []
    for name, sources in _by_links(inspection).items():
        groups = sorted({source.group_size for source in sources})
        size = sum(source.bytes_per_step for source in sources)
        seconds = _timed(inspection, sum(source.seconds or 0.0 for source in sources))
        words = ", ".join(map(str, groups))
        rows.append([name, sum(source.count for source in sources), size, seconds, words])
    return Table(
        "Communication of one device in a step",
        "The collectives of each kind: the tensors that they send, their bytes, the time of the links, "
        "and the number of devices that exchange data.",
        [
            *(Column("kind"), Column("count", COUNT), Column("bytes", BYTES)),
            *(Column("time", MILLISECONDS), Column("group size", LABEL)),
        ],
        rows,
    )


def _by_links(inspection: Inspection) -> dict[str, list[Source]]:
    """Returns the sources by kind. Those between slices, on slower links, have a name of their own."""
    by_name: dict[str, list[Source]] = {}
    for kind in COLLECTIVE_KINDS:
        for source in inspection.sources:
            if source.kind == kind:
                name = f"{kind} between slices" if source.slices > 1 else kind
                by_name.setdefault(name, []).append(source)
    return by_name


def expected(inspection: Inspection) -> Table:
    """Returns the collectives that annotations, rules or arithmetic imply, most bytes first."""
    return Table(
        "causes, most bytes first",
        "Why the collectives are there. Those of equal layers are in one row.",
        [
            *(Column("kind"), Column("count", COUNT), Column("array on one device")),
            *(Column("bytes", BYTES), Column("place"), Column("why")),
        ],
        [
            [source.kind, count, source.shape, size, source.origin.place, source.why]
            for source, count, size in _merged(s for s in inspection.sources if s.asked_for)
        ],
    )


def unexpected(inspection: Inspection) -> Table:
    """Returns all other collectives, with what may remove them."""
    return Table(
        "unexpected",
        "No annotation and no rule of the mesh asks for these.",
        [
            *(Column("kind"), Column("count", COUNT), Column("bytes", BYTES)),
            *(Column("why"), Column("remedy")),
        ],
        [
            [source.kind, count, size, source.why, _remedy(source)]
            for source, count, size in _merged(s for s in inspection.sources if not s.asked_for)
        ],
    )


def every_collective(inspection: Inspection) -> Table:
    """Returns every tensor of every collective."""
    return Table(
        "every collective, tensor by tensor",
        "Every tensor that a collective sends, with its number of times and its bytes in a step.",
        [
            *(Column("kind"), Column("count", COUNT), Column("array on one device")),
            *(Column("bytes", BYTES), Column("time", MILLISECONDS), Column("group size", COUNT)),
            *(Column("place"), Column("why")),
        ],
        [
            [
                *(source.kind, source.count, source.shape, source.bytes_per_step),
                *(source.seconds, source.group_size, source.origin.place, source.why),
            ]
            for source in inspection.sources
        ],
    )


def _remedy(source: Source) -> str:
    return f"may help: {source.remedy}" if source.remedy else "no setting is known to remove it"


def overrides_lines(inspection: Inspection) -> list[str]:
    """Returns the setting that keeps small weights whole on every device; [] if it would not help."""
    added = {name: dims for source in inspection.sources for name, dims in source.overrides.items()}
    if not added:
        return []
    # The first pattern that matches a name decides, so the new patterns come first.
    return [f"setting to try: Mesh.overrides = { ({**added, **inspection.overrides}) }"]


def _merged(sources: Iterable[Source]) -> list[tuple[Source, int, int]]:
    """Merges sources that differ only in the number of the block: (first source, count, bytes)."""
    merged: dict[tuple, tuple[Source, int, int]] = {}
    for source in sources:
        layer = " ".join(word for word in source.origin.layer.split() if not word.isdigit())
        key = (
            source.kind,
            layer,
            source.origin.part,
            source.origin.direction,
            source.shape,
            source.why,
        )
        first, count, size = merged.get(key, (source, 0, 0))
        merged[key] = (first, count + source.count, size + source.bytes_per_step)
    return sorted(merged.values(), key=lambda entry: -entry[2])


def work(inspection: Inspection) -> Table:
    """Returns the predicted time of each kind of work, and of the whole step."""
    step = inspection.step_seconds or 0.0
    rows: list[list[Value]] = [
        [kind, work.flops, work.seconds, work.roofline_seconds, share(work.seconds, step)]
        for kind, work in inspection.by_kind().items()
    ]
    for name, sources in _by_links(inspection).items():
        if seconds := sum(source.seconds or 0.0 for source in sources):
            rows.append([name, "", "", seconds, share(seconds, step)])
    return Table(
        "Compute of one device in a step",
        "The predicted time of each kind of work (GShard's Figure 8). The estimate is the compiler's. "
        "The roofline is the time at the peak of the chip, its memory and its links.",
        [
            *(Column("kind of work"), Column("products", FLOPS), Column("estimate", MILLISECONDS)),
            *(Column("roofline", MILLISECONDS), Column("share of the step", SHARE)),
        ],
        rows,
        [["step", inspection.total.flops, step, inspection.roofline_seconds or 0.0, ""]],
    )


def work_total(inspection: Inspection) -> str:
    """Returns the FLOPs and the memory traffic of a step."""
    total = inspection.total
    return f"{flops_text(total.flops)} in products, {size_text(total.bytes_accessed)} of memory traffic"


def step_lines(inspection: Inspection, tokens: float) -> list[str]:
    """Returns the predicted step, the cost of a run, and what the papers measured; [] without times."""
    step, years = inspection.step_seconds, inspection.device_years(tokens)
    if step is None:
        return []
    assert years is not None
    lines = []
    if again := sum(inspection.by_kind("recomputed").values(), Work()).seconds:
        lines.append(
            f"{again * 1e3:,.2f} ms of the step ({again / step:.1%}) recompute the forward pass "
            "(Model.remat, Model.stack)"
        )
    lines.append(
        f"predicted step {step:.3f} s ({inspection.roofline_fraction or 0:.0%} of roofline, "
        f"{inspection.flops_utilization or 0:.0%} of peak FLOPS), "
        f"{inspection.tokens_per_step / step:,.0f} tokens/s, "
        f"{years:,.1f} device-years for {tokens:.3g} tokens"
    )
    return lines + _paper_lines(inspection)


def _paper_lines(inspection: Inspection) -> list[str]:
    """Returns the paper's figures for this model, mesh and batch; [] if the papers have none."""
    chip = inspection.topology.chip
    if inspection.step != "training" or chip is None or chip.name != "v3":
        return []
    mesh = tuple(inspection.mesh.values())
    paper = reported(inspection.config, mesh, inspection.tokens_per_step, inspection.counts.total)
    if paper is None:
        return []
    figures = [f"step {paper.step_seconds:.2f} s"]
    if paper.memory_gb is not None:
        figures.append(f"{paper.memory_gb} GB a core")
    if paper.core_years is not None:
        figures.append(f"{paper.core_years} core-years for 1e12 tokens")
    if paper.all_to_all_share is not None:
        figures.append(f"all-to-all {paper.all_to_all_share:.0%}")
    if paper.flops_utilization is not None:
        figures.append(f"{paper.flops_utilization:.1%} of peak FLOPS")
    return [f"the paper measured ({paper.table}): {', '.join(figures)}"]


def _timed(inspection: Inspection, seconds: float) -> float | None:
    return None if inspection.topology.chip is None else seconds


def verdicts(inspections: Sequence[Inspection]) -> list[str]:
    """Returns for each figure whether it stays constant from the fewest to the most devices."""
    compiled = [inspection for inspection in inspections if inspection.has_program]
    if len(compiled) < 2:
        return []
    ordered = sorted(compiled, key=lambda inspection: inspection.topology.num_devices)
    first, last = ordered[0], ordered[-1]
    figures = {
        "instructions of the program": (
            first.compilation.instructions or 0,
            last.compilation.instructions or 0,
            0.01,
        ),
        # CPU time of all threads, because other work on the machine lengthens wall time.
        "compile time on the CPU": (
            first.compilation.compile_cpu_seconds or 0,
            last.compilation.compile_cpu_seconds or 0,
            0.30,
        ),
        "memory of a device": (first.memory.peak, last.memory.peak, 0.05),
    }
    lines = []
    for name, (before, after, bound) in figures.items():
        change = after / before - 1 if before else 0.0
        verdict = "constant" if change <= bound else "not constant"
        lines.append(
            f"{name}: {change:+.1%} from {first.topology.num_devices:,} to "
            f"{last.topology.num_devices:,} devices ({verdict} within {bound:.0%})"
        )
    return lines


def prediction(topology: Topology) -> str:
    """Returns how the times of a topology are predicted, and what they leave out."""
    if topology.chip is None:
        return _NO_TIMES
    return _PREDICTED_FOR_GPUS if isinstance(topology.chip, Gpu) else _PREDICTED
