"""Lowers a TensorFlow function to StableHLO, and makes the StableHLO part of a JAX function.

TF2XLA lowers the function on the host. It always lowers for the CPU, because the StableHLO is the same
for every target and stock TensorFlow cannot lower for a TPU. Annotations become `@Sharding` custom
calls. A primitive then inlines the StableHLO into a JAX function, which jax partitions, compiles and
exports.
"""

import contextlib
import dataclasses
import functools
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import rules


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """The shape, dtype and letters (one per dimension) of an array that need not exist."""

    shape: tuple[int, ...]
    dtype: np.dtype
    letters: str = ""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


ArraySpecs = Mapping[str, ArraySpec]


@dataclasses.dataclass(frozen=True)
class Signature:
    """The arguments and results of a function: groups of named arrays, flattened by sorted name."""

    inputs: tuple[ArraySpecs, ...]
    outputs: tuple[ArraySpecs, ...]


@dataclasses.dataclass(frozen=True)
class LoweredFunction:
    """A function in StableHLO, which is not partitioned or compiled yet."""

    stablehlo: bytes  # MLIR bytecode of a module with a function `main`
    signature: Signature  # The arguments and results of `main`
    # (letters, shape) of every activation that the function annotates
    annotated: frozenset[tuple[str, tuple[int, ...]]] = frozenset()


def lower(
    function: Callable[..., Sequence[Mapping[str, Any]]],
    inputs: Sequence[ArraySpecs],
    output_letters: Sequence[Mapping[str, str]],
    mesh: Mesh | None,
) -> LoweredFunction:
    """Lowers a function of TensorFlow tensors, with its annotations for `mesh`.

    Args:
      function: takes one dict of tensors for each group of inputs, and returns a sequence of dicts of
        tensors, one for each group of outputs.
      output_letters: for each group of outputs the letters of its arrays. An array that is not named
        here is replicated.
      mesh: the mesh whose rules the annotations follow; None ignores annotations.

    Returns:
      The lowered function. It takes every argument, even unused ones, in the order of `flatten`.
    """
    tf = load_tensorflow()
    names = flatten(inputs)
    results: list[Mapping[str, Any]] = []

    def flat(*tensors):
        groups = unflatten(inputs, tensors)
        results[:] = function(*groups)
        return [value for _, value in flatten(results)]

    specs = [tf.TensorSpec(s.shape, tf.as_dtype(s.dtype), n.replace("/", "_")) for n, s in names]
    with rules(mesh) as active_mesh:
        # No operation has a state, so none needs control dependencies, which take time to find.
        compiled = tf.function(
            flat, jit_compile=True, autograph=False, experimental_attributes={"_disable_acd": True}
        )
        ir = compiled.experimental_get_compiler_ir(*specs)(
            stage="stablehlo_serialized", platform_name="CPU"
        )
    outputs = tuple(
        {
            name: ArraySpec(tuple(t.shape), np.dtype(t.dtype.as_numpy_dtype), letters.get(name, ""))
            for name, t in group.items()
        }
        for group, letters in zip(results, output_letters, strict=True)
    )
    annotated = frozenset(active_mesh.annotated)
    return LoweredFunction(ir, Signature(tuple(inputs), outputs), annotated)


def unflatten(groups: Sequence[Mapping[str, object]], values: Sequence) -> list[dict]:
    """Returns one dict for each group. The flat `values` are in the order of the sorted names."""
    remaining = iter(values)
    return [{name: next(remaining) for name in sorted(group)} for group in groups]


def as_jax_function(lowered: LoweredFunction) -> Callable[..., list]:
    """Returns a JAX function of the flat arguments, whose result is the list of flat results."""
    outputs = flatten(lowered.signature.outputs)
    avals = tuple((spec.shape, np.dtype(spec.dtype)) for _, spec in outputs)

    def call(*arguments):
        return _primitive().bind(*arguments, stablehlo=lowered.stablehlo, avals=avals)

    return call


def annotations_of(
    function: Callable[..., Any], *shapes: Sequence[int], mesh: Mesh | None
) -> list[str]:
    """Lowers a function and returns its annotations in order, as XLA writes them.

    Returns:
      The sharding of each annotation, followed by the dimensions that it leaves to propagation.
    """
    names = [f"argument_{i:03}" for i in range(len(shapes))]
    inputs = {
        name: ArraySpec(tuple(shape), np.dtype(np.float32))
        for name, shape in zip(names, shapes, strict=True)
    }

    def named(group):
        return [{"result": function(*(group[name] for name in names))}]

    return annotations_in(lower(named, [inputs], [{}], mesh))


def annotations_in(lowered: LoweredFunction) -> list[str]:
    """Returns the text of each `@Sharding` custom call."""
    from jax.interpreters import mlir
    from jaxlib.mlir import ir

    annotations: list[str] = []

    def text(operation, attribute):
        attributes = operation.attributes
        return ir.StringAttr(attributes[attribute]).value if attribute in attributes else ""

    def visit(operation):
        if text(operation, "call_target_name") == "Sharding":
            sharding, unspecified = (
                text(operation, name) for name in ("mhlo.sharding", "backend_config")
            )
            annotations.append(f"{sharding} {unspecified}".rstrip())
        return ir.WalkResult.ADVANCE

    with mlir.make_ir_context():
        ir.Module.parse(lowered.stablehlo).operation.walk(visit)
    return annotations


def flatten(groups: Sequence[Mapping[str, Any]]) -> list[tuple[str, Any]]:
    """Returns (name, value) of everything in groups, in the order of the flat arguments or results."""
    return [(name, group[name]) for group in groups for name in sorted(group)]


@functools.cache
def load_tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    try:
        with silenced_stderr(), _without("keras.src.optimizers"):
            import tensorflow as tf

            tf.config.list_physical_devices()
    except ImportError as error:
        raise UserError(
            "the cache has no lowered function for this config, mesh and version of gshard-nmt, and "
            f"without TensorFlow it cannot be made ({error}). Install TensorFlow with pip install "
            "tensorflow, or start the run once where it is, on the same kind of devices, and copy the "
            "run folder here. Programs other than gshard-train read those only with --trust_programs."
        ) from None
    # TensorFlow only traces and lowers, so it must not reserve the memory of a GPU.
    tf.config.set_visible_devices([], "GPU")
    return tf


@contextlib.contextmanager
def _without(module: str) -> Iterator[None]:
    """Makes the import of a module fail inside the block, unless it has been imported before.

    TensorFlow imports Keras if it can, by this module. We do not use it, and it takes a quarter of the
    time. Keras can be imported afterwards.
    """
    absent = module not in sys.modules
    if absent:
        sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules[module]


@contextlib.contextmanager
def silenced_stderr() -> Iterator[None]:
    """Discards stderr inside the block: libraries write to it before their log levels can be set."""
    saved = os.dup(2)
    with open(os.devnull, "wb") as devnull:
        os.dup2(devnull.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


@functools.cache
def _primitive():
    import jax
    from jax._src.interpreters import mlir as mlir_internal
    from jax.extend.core import Primitive
    from jax.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    primitive = Primitive("lowered_program")
    primitive.multiple_results = True

    @primitive.def_abstract_eval
    def abstract_eval(*_, stablehlo, avals):
        del stablehlo
        return [jax.core.ShapedArray(shape, dtype) for shape, dtype in avals]

    def inline(ctx, *arguments, stablehlo, avals):
        del avals
        module = ctx.module_context.module
        name = mlir_internal.merge_mlir_modules(
            module,
            "lowered_program",
            ir.Module.parse(stablehlo),
            dst_symtab=ctx.module_context.symbol_table,
        )
        types = [mlir.aval_to_ir_type(ctx.module_context, aval) for aval in ctx.avals_out]
        return func.CallOp(types, ir.FlatSymbolRefAttr.get(name), list(arguments)).results

    mlir.register_lowering(primitive, inline)
    return primitive
