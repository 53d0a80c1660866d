"""The report of an inspection for a terminal."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console

from gshard_nmt.inspection.communication import KINDS, Source
from gshard_nmt.inspection.compute import Work
from gshard_nmt.inspection.papers import printed
from gshard_nmt.inspection.record import Inspection

GIB = 2**30

_CATEGORY_WORDS = {
    "replicated_weights": "replicated weights",
    "sharded_weights": "sharded weights",
    "optimizer": "optimizer",
    "batch": "batch",
    "activations": "activations and gradients",
}


def as_text(found: Inspection, tokens: float) -> str:
    """The whole report; `tokens` is the budget for the cost of a run."""
    parts = [_head(found), *[f"note: {note}" for note in found.notes], "", _memory(found)]
    if found.has_program:
        parts += ["", _communication(found), "", _compute(found, tokens)]
    parts += ["", _compilation(found)]
    return "\n".join(parts) + "\n"


def _head(found: Inspection) -> str:
    mesh = " x ".join(f"{name}={size}" for name, size in found.mesh.items())
    counts = found.counts
    return (
        f"{found.config}, one {found.step} step on {found.topology.name}: "
        f"{found.topology.num_devices:,} devices, mesh {mesh}\n"
        f"parameters: {counts.total:,}; {counts.active_per_token:,} active per token; "
        f"{counts.per_device:,} on each device"
    )


def _memory(found: Inspection) -> str:
    memory = found.memory
    lines = ["MEMORY of one device" + (" (an estimate: there is no program)" * memory.is_estimate)]
    rows = [
        (_CATEGORY_WORDS[name], size_text(size), share(size, memory.peak))
        for name, size in memory.by_category.items()
    ]
    rows.append(("peak", size_text(memory.peak), ""))
    if memory.hbm:
        left = memory.hbm - memory.peak
        what = "free" if left >= 0 else "too much"
        rows.append(("the device has", size_text(memory.hbm), f"{size_text(abs(left))} {what}"))
    lines.append(table(rows))
    if memory.argument is not None:
        assert memory.temp is not None
        assert memory.output is not None
        assert memory.alias is not None
        lines.append(
            f"  the compiler: arguments {size_text(memory.argument)}, temporaries "
            f"{size_text(memory.temp)}, outputs {size_text(memory.output)}, of which "
            f"{size_text(memory.alias)} in the arguments' place"
        )
    if found.does_not_fit:
        lines += ["", *found.does_not_fit]
    if found.temporaries:
        lines.append("  largest temporaries when most are alive:")
        lines.append(
            table(
                ("", size_text(one.bytes), one.shape[:44], one.origin.where)
                for one in found.temporaries[:6]
            )
        )
    return "\n".join(lines)


def _communication(found: Inspection) -> str:
    lines = ["COMMUNICATION of one device in a step"]
    rows = [("kind", "count", "bytes", "seconds", "devices")]
    for kind in KINDS:
        sources = [source for source in found.sources if source.kind == kind]
        if sources:
            groups = sorted({source.group_size for source in sources})
            rows.append(
                (
                    kind,
                    f"{found.kind_count(kind):,}",
                    size_text(sum(source.bytes_per_step for source in sources)),
                    _seconds(sum(source.seconds or 0.0 for source in sources), found),
                    ", ".join(map(str, groups)),
                )
            )
    if len(rows) == 1:
        return "\n".join([*lines, "  none"])
    lines.append(table(rows))
    lines.append("  where they come from, most bytes first:")
    shown = _merged(source for source in found.sources if source.asked_for)
    for source, count, size in shown[:12]:
        times = f"{count} x " if count > 1 else ""
        lines.append(
            f"    {times}{source.kind} {source.shape}, {size_text(size)}, "
            f"{source.origin.where}: {source.why}"
        )
    if len(shown) > 12:
        rest = sum(size for _, _, size in shown[12:])
        lines.append(f"    and {len(shown) - 12} more, {size_text(rest)} together (see --json)")
    unasked = _merged(source for source in found.sources if not source.asked_for)
    if unasked:
        lines.append("  NOBODY ASKED FOR these:")
        for source, count, size in unasked[:12]:
            times = f"{count} x " if count > 1 else ""
            lines.append(f"    {times}{source.kind}, {size_text(size)}: {source.why}")
            lines.append(f"      {remedy_text(source)}")
        if len(unasked) > 12:
            lines.append(f"    and {len(unasked) - 12} more (see --json)")
        lines += [f"  {line}" for line in overrides_text(found)]
    return "\n".join(lines)


def remedy_text(source: Source) -> str:
    """What may remove a collective that nobody asked for."""
    return f"may help: {source.remedy}" if source.remedy else "no setting is known to remove it"


def overrides_text(found: Inspection) -> list[str]:
    """The whole setting that keeps small weights on every device; [] where no weight is better so."""
    added = {name: dims for source in found.sources for name, dims in source.overrides.items()}
    if not added:
        return []
    # The first pattern that matches a name decides, so the new ones come first.
    return [f"below: Mesh.overrides = { ({**added, **found.overrides}) }"]


def _merged(sources: Iterable[Source]) -> list[tuple[Source, int, int]]:
    """Sources that differ only in the repeat of their block as one: (a source, count, bytes)."""
    merged: dict[tuple, tuple[Source, int, int]] = {}
    for source in sources:
        layer = " ".join(word for word in source.origin.layer.split() if not word.isdigit())
        # A statistic is one of many; which, hardly matters.
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


def _compute(found: Inspection, tokens: float) -> str:
    total = found.total
    lines = [
        "COMPUTE of one device in a step",
        f"  {total.flops / 1e12:,.3f} TFLOP in products, {size_text(total.bytes_accessed)} of "
        "memory traffic",
    ]
    chip = found.topology.chip
    if chip is None or found.step_seconds is None or found.roofline_seconds is None:
        lines.append("  times are predicted for TPU topologies only")
        return "\n".join(lines)
    rows = [("kind of work", "TFLOP", "compiler", "roofline", "share of the step")]
    for kind, work in found.by_kind().items():
        rows.append(
            (
                kind,
                f"{work.flops / 1e12:.3f}",
                _seconds(work.seconds, found),
                _seconds(work.roofline_seconds, found),
                share(work.seconds, found.step_seconds),
            )
        )
    for kind in KINDS:
        seconds = sum(source.seconds or 0.0 for source in found.sources if source.kind == kind)
        if seconds:
            rows.append(
                (kind, "", "", _seconds(seconds, found), share(seconds, found.step_seconds))
            )
    rows.append(
        (
            "step",
            f"{total.flops / 1e12:.3f}",
            _seconds(found.step_seconds, found),
            _seconds(found.roofline_seconds, found),
            "",
        )
    )
    lines.append(table(rows))
    if again := sum(found.by_kind("recomputed").values(), Work()).seconds:
        lines.append(
            f"  {_seconds(again, found)} of it, {share(again, found.step_seconds)}, compute the forward "
            "pass again (Model.remat, Model.stack)"
        )
    years = found.device_years(tokens)
    assert years is not None
    lines.append(
        f"  predicted step {found.step_seconds:.3f} s ({found.roofline_fraction or 0:.0%} of roofline, "
        f"{found.flops_utilization or 0:.0%} of peak FLOPS), "
        f"{found.tokens_per_step / found.step_seconds:,.0f} tokens/s, "
        f"{years:,.1f} device-years for {tokens:.3g} tokens"
    )
    paper = printed(found.config, found.topology.num_devices)
    if paper is not None and chip.name == "v3":
        facts = [f"step {paper.step_seconds:.2f} s"]
        if paper.memory_gb is not None:
            facts.append(f"{paper.memory_gb} GB a core")
        if paper.core_years is not None:
            facts.append(f"{paper.core_years} core-years for 1e12 tokens")
        if paper.all_to_all_share is not None:
            facts.append(f"all-to-all {paper.all_to_all_share:.0%}")
        if paper.flops_utilization is not None:
            facts.append(f"{paper.flops_utilization:.1%} of peak FLOPS")
        lines.append(f"  the paper measured ({paper.table}): {', '.join(facts)}")
    lines.append(
        "  The compiler's estimate of each operation, and links at their peak with nothing "
        "overlapped; no host, no input, no imbalance."
    )
    return "\n".join(lines)


def _compilation(found: Inspection) -> str:
    made = found.compilation
    text = f"COMPILATION: lowering {made.lower_seconds:.1f} s"
    if made.compile_seconds is not None:
        text += (
            f", compiling {made.compile_seconds:.1f} s ({made.compile_cpu_seconds:.1f} s of CPU)"
        )
    if made.instructions is not None:
        text += f"; {made.instructions:,} instructions"
        if found.memory.code:
            text += f", {size_text(found.memory.code)} of code"
    return text


def growth(inspections: Sequence[Inspection]) -> str:
    """The table of several topologies: what stays constant, and what grows."""
    rows: list[tuple[str, ...]] = [
        ("topology", "devices", "parameters", "instructions", "compile CPU", "peak", "all-to-all",
         "all-reduce", "step"),
    ]  # fmt: skip
    for found in inspections:
        compiled = found.compilation
        rows.append(
            (
                found.topology.name,
                f"{found.topology.num_devices:,}",
                f"{found.counts.total:,}",
                "-" if compiled.instructions is None else f"{compiled.instructions:,}",
                "-"
                if compiled.compile_cpu_seconds is None
                else f"{compiled.compile_cpu_seconds:.0f} s",
                size_text(found.memory.peak),
                *(str(found.kind_count(kind)) for kind in ("all-to-all", "all-reduce")),
                "-" if found.step_seconds is None else f"{found.step_seconds:.3f} s",
            )
        )
    lines = ["GROWTH with the number of devices", table(rows)]
    made = [found for found in inspections if found.has_program]
    if len(made) > 1:
        lines += [f"  {line}" for line in verdicts(made)]
    return "\n".join(lines) + "\n"


def verdicts(inspections: Sequence[Inspection]) -> list[str]:
    """For each figure whether it stays constant from the fewest devices to the most."""
    ordered = sorted(inspections, key=lambda found: found.topology.num_devices)
    first, last = ordered[0], ordered[-1]
    figures: Mapping[str, tuple[float, float, float]] = {
        "instructions of the program": (
            first.compilation.instructions or 0,
            last.compilation.instructions or 0,
            0.01,
        ),
        # Of all threads: the time on the clock is also that of whatever else the machine does.
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
        word = "constant" if change <= bound else "not constant"
        lines.append(
            f"{name}: {change:+.1%} from {first.topology.num_devices:,} to "
            f"{last.topology.num_devices:,} devices ({word} within {bound:.0%})"
        )
    return lines


def table(rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns, the first to the left and the others to the right, but for words at the end."""
    listed = [tuple(row) for row in rows]
    if not listed:
        return ""
    widths = [max(len(row[i]) for row in listed) for i in range(len(listed[0]))]
    lines = []
    for row in listed:
        cells = [row[0].ljust(widths[0])]
        cells += [
            cell.ljust(width) if i == len(row) - 1 and not _numeric(cell) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row[1:], widths[1:], strict=True), start=1)
        ]
        lines.append(("    " + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def _numeric(cell: str) -> bool:
    return cell[:1].isdigit() or cell in ("", "-")


def size_text(size: float) -> str:
    """Bytes in the unit that reads best."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= factor:
            return f"{size / factor:,.2f} {unit}"
    return f"{size:,.0f} B"


def count_text(count: float) -> str:
    """A number of weights in words: "619.4 billion"."""
    for word, factor in (("billion", 1e9), ("million", 1e6)):
        if count >= factor:
            return f"{count / factor:,.1f} {word}"
    return f"{count:,.0f}"


def seconds_text(seconds: float) -> str:
    """A time in the unit that reads best."""
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1e3:,.2f} ms"


def share(part: float, whole: float) -> str:
    """A share in percent."""
    return f"{part / whole:.1%}" if whole else "-"


def _seconds(seconds: float, found: Inspection) -> str:
    return "-" if found.topology.chip is None else f"{seconds * 1e3:,.2f} ms"


@contextlib.contextmanager
def waiting(task: str) -> Iterator[None]:
    """Shows on stderr what is being done, and afterwards the seconds that it took."""
    console = Console(stderr=True, highlight=False)
    began = time.perf_counter()
    if console.is_terminal:
        with console.status(task + " ..."):
            yield
    else:
        yield
    console.print(f"{task}: {time.perf_counter() - began:.1f} s", markup=False, soft_wrap=True)
