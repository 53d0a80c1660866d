"""Writes the report of an inspection as text: memory, collectives with their causes, work and time."""

import contextlib
import dataclasses
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from gshard_nmt.inspection.communication import Source
from gshard_nmt.inspection.compute import Work
from gshard_nmt.inspection.papers import reported
from gshard_nmt.inspection.program_cost import Inspection
from gshard_nmt.quantities import flops_text, size_text
from gshard_nmt.terminal import Terminal, aligned

_PREDICTED = (
    "Predicted from the compiler's estimate of each operation (on GPUs its roofline) and the links' peak "
    "bandwidth. Overlap, the host, the input and load imbalance are left out."
)
_MOST_LINES = 12


def report(inspection: Inspection, tokens: float) -> str:
    counts = inspection.counts
    lines = [
        f"{inspection.config}, one training step on {inspection.topology.name}: "
        f"{inspection.topology.num_devices:,} devices, mesh "
        + " x ".join(f"{name}={size}" for name, size in inspection.mesh.items()),
        f"parameters: {counts.total:,}; {counts.active_per_token:,} active per token; "
        f"{counts.per_device:,} on each device",
        *[f"note: {note}" for note in inspection.notes],
        "",
        *_memory(inspection),
    ]
    if inspection.has_program:
        lines += ["", *_communication(inspection), "", *_compute(inspection, tokens)]
    return "\n".join([*lines, "", _compilation(inspection)]) + "\n"


def _memory(inspection: Inspection) -> list[str]:
    """Returns what is in the memory of a device when it is fullest (GShard Figure 7)."""
    memory = inspection.memory
    rows = [
        (name.replace("_", " "), size_text(size), _share(size, memory.peak))
        for name, size in memory.by_category.items()
    ]
    rows.append(("peak", size_text(memory.peak), ""))
    if memory.hbm:
        left = memory.hbm - memory.peak
        rows.append(("the device has", size_text(memory.hbm), ""))
        rows.append(("free" if left >= 0 else "missing", size_text(abs(left)), ""))
    lines = ["MEMORY of one device", table(rows)]
    if memory.argument is None:
        lines.append("  estimated, because there is no program")
    else:
        lines.append(
            f"  the compiler counts: arguments {size_text(memory.argument)}, temporaries "
            f"{size_text(memory.temp or 0)}, outputs {size_text(memory.output or 0)} "
            f"({size_text(memory.alias or 0)} of them reuse the arguments' memory)"
        )
    if inspection.does_not_fit:
        lines += ["", *inspection.does_not_fit]
    return lines


def _communication(inspection: Inspection) -> list[str]:
    has_times = inspection.topology.chip is not None
    rows = [("kind", "count", "bytes", "time", "group size", "mesh axes")]
    by_kind = inspection.sources_by_kind()
    for name, axes in dict.fromkeys((s.kind, s.axes) for each in by_kind.values() for s in each):
        sources = [source for source in by_kind[name] if source.axes == axes]
        count = f"{sum(source.count for source in sources):,}"
        nbytes = size_text(sum(source.bytes_per_step for source in sources))
        groups = ", ".join(map(str, sorted({source.group_size for source in sources})))
        time = _milliseconds(_seconds(sources)) if has_times else "-"
        rows.append((name, count, nbytes, time, groups, " ".join(axes) or "-"))
    title = "COMMUNICATION of one device in a step"
    if len(rows) == 1:
        return [title, "  none"]
    lines = [title, table(rows), *_causes(inspection, True), *_causes(inspection, False)]
    reasons = [source.reason for source in inspection.sources]
    added = {name: dims for reason in reasons for name, dims in reason.overrides.items()}
    if added:
        # The first pattern that matches a name decides, so the new patterns come first.
        others = {k: v for k, v in inspection.overrides.items() if k not in added}
        lines.append(f"  setting to try: Mesh.overrides = {added | others}")
    return lines


def _causes(inspection: Inspection, asked_for: bool) -> list[str]:
    """Returns lines for the collectives that annotations or rules ask for, or for the others."""
    sources = merged(s for s in inspection.sources if s.reason.asked_for == asked_for)
    if not sources:
        return []
    unexpected = "  UNEXPECTED: no annotation and no rule of the mesh asks for these:"
    lines = ["  causes, most bytes first:" if asked_for else unexpected]
    for source, count, size in sources[:_MOST_LINES]:
        times = "" if count == 1 else f"{count:,} x "
        place = f"{source.shape}, {size_text(size)}, {source.origin.place}"
        lines.append(f"    {times}{source.kind} {place}: {source.reason.why}")
        if source.reason.remedy:
            lines.append(f"      may help: {source.reason.remedy}")
    if rest := sources[_MOST_LINES:]:
        together = size_text(sum(size for _, _, size in rest))
        lines.append(f"    and {len(rest)} more, {together} together (see --json)")
    return lines


def merged(sources: Iterable[Source]) -> list[tuple[Source, int, int]]:
    """Merges sources that differ only in the number of the block: (first source, count, bytes)."""
    merged: dict[tuple, tuple[Source, int, int]] = {}
    for source in sources:
        layer = " ".join(word for word in source.origin.layer.split() if not word.isdigit())
        origin = dataclasses.replace(source.origin, layer=layer, kind="", scopes=())
        key = (source.kind, origin, source.shape, source.reason.why)
        first, count, size = merged.get(key, (source, 0, 0))
        merged[key] = (first, count + source.count, size + source.bytes_per_step)
    return sorted(merged.values(), key=lambda entry: -entry[2])


def _compute(inspection: Inspection, tokens: float) -> list[str]:
    """Returns the predicted time of each kind of work, and of the whole step (GShard Figure 8)."""
    total, step = inspection.total, inspection.step_seconds
    lines = [
        "COMPUTE of one device in a step",
        f"  {flops_text(total.flops)} in products, {size_text(total.bytes_accessed)} of memory traffic",
    ]
    if step is None:
        return [*lines, "  times are predicted for TPUs and GPUs only"]

    def row(name: str, work: Work) -> tuple[str, str, str, str, str]:
        estimate, roofline = map(_milliseconds, (work.seconds, work.roofline_seconds))
        return name, flops_text(work.flops), estimate, roofline, _share(work.seconds, step)

    rows = [("kind of work", "products", "estimate", "roofline", "share of the step")]
    rows += [row(kind, work) for kind, work in inspection.by_kind().items()]
    for name, sources in inspection.sources_by_kind().items():
        if seconds := _seconds(sources):
            rows.append((name, "", "", _milliseconds(seconds), _share(seconds, step)))
    rows.append(row("step", Work(total.flops, 0.0, step, inspection.roofline_seconds or 0.0)))
    return [*lines, table(rows), *[f"  {x}" for x in [*step_lines(inspection, tokens), _PREDICTED]]]


def step_lines(inspection: Inspection, tokens: float) -> list[str]:
    """Returns the predicted step, the cost of a run, and what the papers measured; [] without times."""
    step, years = inspection.step_seconds, inspection.device_years(tokens)
    if step is None or years is None:
        return []
    lines = []
    if again := inspection.recomputed.seconds:
        lines.append(
            f"{_milliseconds(again)} of the step ({again / step:.1%}) recompute the forward pass "
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
    chip, mesh = inspection.topology.chip, tuple(inspection.mesh.values())
    if chip is None or chip.name != "v3":
        return []
    paper = reported(inspection.config, mesh, inspection.tokens_per_step, inspection.counts.total)
    if paper is None:
        return []
    figures = (
        ("step {:.2f} s", paper.step_seconds),
        ("{} GB a core", paper.memory_gb),
        ("{} core-years for 1e12 tokens", paper.core_years),
        ("all-to-all {:.0%}", paper.all_to_all_share),
        ("{:.1%} of peak FLOPS", paper.flops_utilization),
    )
    text = ", ".join(words.format(figure) for words, figure in figures if figure is not None)
    return [f"the paper measured ({paper.table}): {text}"]


def _compilation(inspection: Inspection) -> str:
    compilation = inspection.compilation
    text = f"COMPILATION: lowering {compilation.lower_seconds:.1f} s"
    if inspection.has_program:
        text += (
            f", compiling {compilation.compile_seconds:.1f} s "
            f"({compilation.compile_cpu_seconds:.1f} s of CPU time); "
            f"{compilation.instructions:,} instructions"
        )
    return text


def growth(inspections: Sequence[Inspection]) -> str:
    """Returns a table of several topologies."""
    titles = ("topology", "devices", "parameters", "instructions", "compile CPU", "peak", "step")
    rows: list[tuple[str, ...]] = [titles]
    for inspection in inspections:
        compilation, step = inspection.compilation, inspection.step_seconds
        cpu, instructions = compilation.compile_cpu_seconds, compilation.instructions
        rows.append(
            (
                inspection.topology.name,
                f"{inspection.topology.num_devices:,}",
                f"{inspection.counts.total:,}",
                "-" if instructions is None else f"{instructions:,}",
                "-" if cpu is None else f"{cpu:.0f} s",
                size_text(inspection.memory.peak),
                f"{step:.3f} s" if step else "-",
            )
        )
    return "\n".join(["GROWTH with the number of devices", table(rows)]) + "\n"


def _seconds(sources: Iterable[Source]) -> float:
    return sum(source.seconds or 0.0 for source in sources)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def table(rows: Iterable[Sequence[str]]) -> str:
    """Returns rows as aligned columns: names and closing words to the left, the others to the right."""
    texts = []
    for row in rows:
        cells = [Text(cell, justify="right") for cell in row]
        cells[0].justify = "left"
        if row[-1] not in ("", "-") and not row[-1][0].isdigit():
            cells[-1].justify = "left"
        texts.append(cells)
    return textwrap.indent(aligned(texts).rstrip(), "    ")


@contextlib.contextmanager
def waiting(task: str) -> Iterator[None]:
    """Prints on stderr which task is running, and how long it took."""
    console = Terminal(stderr=True)
    began = time.perf_counter()
    if console.is_terminal:
        with console.status(task + " ..."):
            yield
    else:
        yield
    console.print(f"{task}: {time.perf_counter() - began:.1f} s")
