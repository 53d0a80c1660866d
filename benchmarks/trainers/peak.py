"""The fastest large matrix product of this machine, in turns with the trainers."""

import importlib.metadata

from harness.turns import take_turns
from trainers.workload import Workload

from gshard_nmt.spmd import machine

SIZE = 2048
PRODUCTS = 8


def main() -> None:
    workload = Workload.of_command_line(__doc__)
    machine.choose_platform()
    import jax

    keys = jax.random.split(jax.random.key(0))
    lhs, rhs = (jax.random.normal(key, (SIZE, SIZE), workload.precision) for key in keys)
    # XLA:CPU has no fast kernel for products whose sums are bfloat16.
    product = jax.jit(lambda x, y: jax.numpy.matmul(x, y, preferred_element_type="float32"))

    def multiply() -> None:
        for _ in range(PRODUCTS):
            product(lhs, rhs).block_until_ready()

    facts = {
        "versions": {"jaxlib": importlib.metadata.version("jaxlib")},
        "gflop": PRODUCTS * 2 * SIZE**3 / 1e9,
    }
    take_turns(multiply, lambda: facts)


if __name__ == "__main__":
    main()
