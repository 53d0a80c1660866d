"""Eight virtual CPU devices for every test; a mesh of fewer takes the first of them."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
# Threads of numerical libraries change no result here and only compete for the cores.
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"


def pytest_configure() -> None:
    """Sets the device count before any test can start jax."""
    import jax

    jax.config.update("jax_num_cpu_devices", 8)
