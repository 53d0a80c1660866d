"""What is installed, against what this version was tested with."""

import contextlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Sequence

from gshard_nmt.spmd.topology import INSTALL_LIBTPU, Topology


def packages() -> Iterator[str]:
    """Packages that are missing, or outside the range that this version was tested with."""
    for requirement in importlib.metadata.requires("gshard-nmt") or ():
        found = re.fullmatch(r"([\w.\-]+)((?:[<>=!~]=?[\d.*,\s]*)*)(;.*)?", requirement.strip())
        if found is None or found[3]:
            continue  # an extra's
        name, bounds = found[1], [b for b in found[2].split(",") if b]
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{name} is not installed: pip install '{name}{found[2]}'."
            continue
        if not all(_satisfies(version, bound) for bound in bounds):
            yield f"{name} {version} is installed; gshard-nmt needs {found[2]}: " + (
                f"pip install '{name}{found[2]}'."
            )
    yield from _pairs_that_must_agree()


def tpu_compiler(machines: Sequence[Topology]) -> Iterator[str]:
    """What keeps TPU topologies from being compiled for."""
    names = ", ".join(machine.name for machine in machines if machine.chip is not None)
    if not names:
        return
    if importlib.util.find_spec("libtpu") is None:
        yield f"libtpu is not installed, which --topology {names} needs: {INSTALL_LIBTPU}."
        return
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("libtpu")
        tested = INSTALL_LIBTPU.partition("==")[2].rstrip(".*'")
        if not f"{version}.".startswith(f"{tested}."):
            yield f"libtpu {version} is installed; --topology {names} needs {tested}: {INSTALL_LIBTPU}."


def _satisfies(version: str, bound: str) -> bool:
    found = re.fullmatch(r"\s*(>=|<=|==|<|>)\s*([\d.]+)\s*", bound)
    if found is None:
        return True
    mine, other = _numbers(version), _numbers(found[2])
    length = max(len(mine), len(other))
    a, b = (list(n) + [0] * (length - len(n)) for n in (mine, other))
    return {">=": a >= b, "<=": a <= b, "==": a == b, "<": a < b, ">": a > b}[found[1]]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version.partition("+")[0])[:4])


def _pairs_that_must_agree() -> Iterator[str]:
    """jax with jaxlib, TensorFlow with TensorFlow Text: one release each."""
    for one, other, digits in (("jax", "jaxlib", 3), ("tensorflow", "tensorflow-text", 2)):
        try:
            a, b = importlib.metadata.version(one), importlib.metadata.version(other)
        except importlib.metadata.PackageNotFoundError:
            continue  # named above
        if _numbers(a)[:digits] != _numbers(b)[:digits]:
            yield f"{one} {a} and {other} {b} are of different releases: pip install {other}=={a}."
