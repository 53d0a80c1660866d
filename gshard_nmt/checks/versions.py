"""Compares the installed packages with the versions that this release was tested with."""

import importlib.metadata
import re
from collections.abc import Iterator, Sequence

from gshard_nmt.spmd.chips import Gpu
from gshard_nmt.spmd.topology import INSTALL_CUDA, INSTALL_LIBTPU, Topology


def packages() -> Iterator[str]:
    """Yields a problem for each package that is missing, or has a version that was not tested."""
    for requirement in importlib.metadata.requires("gshard-nmt") or ():
        match = re.fullmatch(r"([\w.\-]+)((?:[<>=!~]=?[\d.*,\s]*)*)(;.*)?", requirement.strip())
        if match is None or match[3]:
            continue  # A requirement with a marker belongs to an extra, which is optional.
        name, bounds = match[1], match[2]
        install = f"pip install '{name}{bounds}'"
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{name} is not installed; install it: {install}."
            continue
        if not all(_satisfies(version, bound) for bound in bounds.split(",") if bound):
            yield f"{name} {version} is installed; gshard-nmt needs {bounds}. Install it: {install}."
    yield from _different_releases()


def compilers(machines: Sequence[Topology]) -> Iterator[str]:
    """Yields a problem for each compiler of these machines that is missing or was not tested."""
    gpus = [machine for machine in machines if isinstance(machine.chip, Gpu)]
    tpus = [machine for machine in machines if machine.chip is not None and machine not in gpus]
    yield from _compiler(tpus, "libtpu", INSTALL_LIBTPU)
    yield from _compiler(gpus, "jax-cuda13-plugin", INSTALL_CUDA)


def _compiler(machines: Sequence[Topology], package: str, install: str) -> Iterator[str]:
    """Yields a problem if a package that compiles for these machines is missing or was not tested."""
    if not machines:
        return
    names = ", ".join(machine.name for machine in machines)
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        yield f"{package} is not installed; --topology {names} needs it. Install it: {install}."
        return
    tested = install.partition("==")[2].rstrip(".*'")
    if not f"{version}.".startswith(f"{tested}."):
        yield (
            f"{package} {version} is installed; --topology {names} needs {tested}. Install it: {install}."
        )


def _satisfies(version: str, bound: str) -> bool:
    """Returns whether a version satisfies a bound such as ">=2.21". Bounds with "~=" always pass."""
    match = re.fullmatch(r"\s*(>=|<=|==|<|>)\s*([\d.]+)\s*", bound)
    if match is None:
        return True
    installed, limit = _numbers(version), _numbers(match[2])
    length = max(len(installed), len(limit))
    a, b = (list(numbers) + [0] * (length - len(numbers)) for numbers in (installed, limit))
    return {">=": a >= b, "<=": a <= b, "==": a == b, "<": a < b, ">": a > b}[match[1]]


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version: (2, 21, 0) for "2.21.0+cpu"."""
    return tuple(int(n) for n in re.findall(r"\d+", version.partition("+")[0])[:4])


def _different_releases() -> Iterator[str]:
    """Yields a problem for two packages that must have the same release number and do not."""
    pairs = (("jax", "jaxlib", 3), ("tensorflow", "tensorflow-text", 2))
    for package, companion, digits in pairs:
        try:
            versions = [importlib.metadata.version(name) for name in (package, companion)]
        except importlib.metadata.PackageNotFoundError:
            continue  # `packages` has named it.
        if _numbers(versions[0])[:digits] != _numbers(versions[1])[:digits]:
            yield (
                f"{package} {versions[0]} and {companion} {versions[1]} are of different releases. "
                f"Install the same release: pip install {companion}=={versions[0]}."
            )
