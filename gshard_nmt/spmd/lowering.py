"""A TensorFlow function becomes StableHLO, and StableHLO becomes part of a JAX program.

TF2XLA lowers the function on the host for every target: stock TensorFlow has no lowering for a TPU,
and the StableHLO it gives for the CPU is the same program. Annotations arrive as `@Sharding` custom
calls. A primitive then inlines the program into a JAX function, so that jax partitions, compiles and
exports it.
"""

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import rules

Dimensions = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """An array that need not exist: shape, dtype and one letter a dimension."""

    shape: Dimensions
    dtype: np.dtype
    letters: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


ArraySpecs = Mapping[str, ArraySpec]


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a program takes and gives: groups of named arrays, flattened by sorted name."""

    inputs: tuple[ArraySpecs, ...]
    outputs: tuple[ArraySpecs, ...]

    def flat_inputs(self) -> list[tuple[str, ArraySpec]]:
        """(name, spec) of every input in the order of the program's arguments."""
        return _flatten(self.inputs)

    def flat_outputs(self) -> list[tuple[str, ArraySpec]]:
        """(name, spec) of every output in the order of the program's results."""
        return _flatten(self.outputs)


@dataclasses.dataclass(frozen=True)
class LoweredFunction:
    """A whole program, not yet partitioned.

    Attributes:
      stablehlo: MLIR bytecode of a module with a function `main`.
      signature: its arguments and results.
      annotated: (letters, shape) of every activation that the function annotates.
    """

    stablehlo: bytes
    signature: Signature
    annotated: frozenset[tuple[str, Dimensions]] = frozenset()


def lower(
    function: Callable[..., Sequence[Mapping[str, Any]]],
    inputs: Sequence[ArraySpecs],
    output_letters: Sequence[Mapping[str, str]],
    mesh: Mesh | None,
) -> LoweredFunction:
    """Lowers a function of TensorFlow tensors, with its annotations for `mesh`.

    Args:
      function: takes one dict of tensors for each group of inputs, gives a sequence of such dicts.
      inputs: the groups of inputs.
      output_letters: for each group of outputs the letters of its arrays; an array that is not named
        is replicated.
      mesh: whose rules the annotations follow; None ignores them.

    Returns:
      The program, with every argument kept, in the order of `Signature.flat_inputs`.
    """
    tf = _tensorflow()
    names = _flatten(inputs)
    results: list[Mapping[str, Any]] = []

    def flat(*tensors):
        groups = unflatten(inputs, tensors)
        results[:] = function(*groups)
        return [value for _, value in _flatten(results)]

    specs = [tf.TensorSpec(s.shape, tf.as_dtype(s.dtype), _tf_name(n)) for n, s in names]
    with rules(mesh) as followed:
        compiled = tf.function(flat, jit_compile=True, autograph=False)
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
    return LoweredFunction(ir, Signature(tuple(inputs), outputs), frozenset(followed.annotated))


def unflatten(groups: Sequence[Mapping[str, object]], values: Sequence) -> list[dict]:
    """The inverse of flattening: one dict for each group, its names in sorted order."""
    remaining = iter(values)
    return [{name: next(remaining) for name in sorted(group)} for group in groups]


def as_jax_function(program: LoweredFunction) -> Callable[..., list]:
    """A JAX function of flat arguments to a list of flat results, to be jitted or exported."""
    avals = tuple(
        (spec.shape, np.dtype(spec.dtype)) for _, spec in program.signature.flat_outputs()
    )

    def call(*arguments):
        return _primitive().bind(*arguments, stablehlo=program.stablehlo, avals=avals)

    return call


def annotations_of(
    function: Callable[..., Any], *shapes: Sequence[int], mesh: Mesh | None
) -> list[str]:
    """The annotations that the lowered program of a function has, in order, as XLA writes them.

    Args:
      function: of float32 tensors, gives one tensor.
      shapes: of these tensors.
      mesh: whose rules the annotations follow.

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

    program = lower(named, [inputs], [{}], mesh)
    return [
        f"{annotation.sharding} {annotation.unspecified}".rstrip()
        for annotation in _operations(program)
        if isinstance(annotation, _Annotation)
    ]


@dataclasses.dataclass(frozen=True)
class AnnotationCount:
    """How much of a program is annotated (GSPMD section 5.1).

    Attributes:
      forward: annotations that the model's author wrote.
      gradient: their copies, which differentiation made.
      tensors: every other result of an operation.
    """

    forward: int
    gradient: int
    tensors: int

    @property
    def share(self) -> float:
        """What the author annotated, as a share of all tensors."""
        return self.forward / self.tensors


def count_annotations(program: LoweredFunction) -> AnnotationCount:
    """Counts the annotations of a program that `lower` has made, and all its tensors."""
    forward = gradient = tensors = 0
    for operation in _operations(program):
        if not isinstance(operation, _Annotation):
            tensors += operation
        elif operation.is_gradient:
            gradient += 1
        else:
            forward += 1
    return AnnotationCount(forward, gradient, tensors)


@dataclasses.dataclass(frozen=True)
class _Annotation:
    """One `@Sharding` custom call."""

    sharding: str
    unspecified: str
    is_gradient: bool


def _operations(program: LoweredFunction) -> list[_Annotation | int]:
    """For each operation of a program its annotation, or else how many tensors it gives."""
    from jax.interpreters import mlir
    from jaxlib.mlir import ir

    found: list[_Annotation | int] = []

    def text(operation, attribute):
        attributes = operation.attributes
        return ir.StringAttr(attributes[attribute]).value if attribute in attributes else ""

    def visit(operation):
        if text(operation, "call_target_name") == "Sharding":
            # TensorFlow puts the operations of a gradient under this name.
            is_gradient = "gradient_tape/" in str(operation.location)
            sharding, unspecified = (
                text(operation, "mhlo.sharding"),
                text(operation, "backend_config"),
            )
            found.append(_Annotation(sharding, unspecified, is_gradient))
        else:
            found.append(len(operation.results))
        return ir.WalkResult.ADVANCE

    with mlir.make_ir_context():
        ir.Module.parse(program.stablehlo).operation.walk(visit)
    return found


def _flatten(groups: Sequence[Mapping[str, Any]]) -> list[tuple[str, Any]]:
    return [(name, group[name]) for group in groups for name in sorted(group)]


def _tf_name(name: str) -> str:
    return name.replace("/", "_")


@functools.cache
def _tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    try:
        with silenced_stderr():
            import tensorflow as tf

            tf.config.list_physical_devices()
    except ImportError as error:
        raise UserError(
            f"this program is not in the run folder's cache, and without TensorFlow it cannot be made "
            f"({error}). Start the run once where TensorFlow is installed, with the same config, mesh "
            "and version of gshard-nmt, and bring its run folder; or pip install tensorflow."
        ) from None
    # TensorFlow only traces and lowers; it must not take an accelerator's memory.
    tf.config.set_visible_devices([], "GPU")
    return tf


@contextlib.contextmanager
def silenced_stderr() -> Iterator[None]:
    """Keeps off the terminal what TensorFlow and libtpu say, before their logs can be set."""
    saved = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
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
