"""Eight virtual CPU devices for every test; a mesh of fewer takes the first of them."""

import atexit
import os
import pathlib
import shutil
import signal
import tempfile

import hypothesis
import pytest

from tests import fake_bucket

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
# Threads of numerical libraries change no result here and only compete for the cores.
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
# Most test programs run once: LLVM spends more time on optimizing them than they run, and the emitters of
# fusions spend most of it. These flags leave partitioning, fusion and the choice of collectives alone.
# Programs that tests start as processes inherit them; those that must be as a user's take `usual_flags`.
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_use_fusion_emitters=false "
    + os.environ.get("XLA_FLAGS", "")
)

if "PYTEST_XDIST_WORKER" not in os.environ:
    # Programs that tests compile must not fill the cache of the user. Workers inherit this folder.
    caches = os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path("~/.cache").expanduser())
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="gshard-test-cache-")
    os.environ.setdefault("MPLCONFIGDIR", f"{caches}/matplotlib")  # its list of fonts takes seconds
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts programs in the background deaf to Ctrl-C, and they hand this on to what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROPERTY_TIMES = 10
"""With --hypothesis-profile=soak a property test has these many times its usual examples."""

hypothesis.settings.register_profile(
    "soak",
    max_examples=100 * PROPERTY_TIMES,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    print_blob=True,
)


# With few workers a long file that starts last is waited for, so these start first. Tests of integration
# wait while one worker prepares the run that they share, so the second file is another one.
LONGEST_FILES = (
    "integration/test_processes.py",
    "multidevice/test_train_step.py",
    "integration/test_pipeline.py",
    "multidevice/test_meshes.py",
    "model/test_families.py",
    "multidevice/",
    "integration/",
    "system/",
    "decoding/",
    "model/",
)


def pytest_configure() -> None:
    """Sets the device count before any test can start jax."""
    import jax

    jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture
def bucket():
    """The objects of gs:// URLs, which are served on this machine."""
    with fake_bucket.serving() as objects:
        yield objects


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Starts the longest files first; with the profile `soak` only property tests, extended."""
    items.sort(key=_place)
    if config.getoption("hypothesis_profile") == "soak":
        others = [item for item in items if not hasattr(item.obj, "hypothesis")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if hasattr(item.obj, "hypothesis")]
        _extend(items)


def _place(item: pytest.Item) -> int:
    path = item.path.as_posix()
    places = [i for i, name in enumerate(LONGEST_FILES) if f"tests/{name}" in path]
    return min(places, default=len(LONGEST_FILES))


def _extend(items: list[pytest.Item]) -> None:
    """Multiplies the number of examples, which would win over the profile's if it stands at a test."""
    for test in {id(item.function): item.function for item in items}.values():
        own = test._hypothesis_internal_use_settings
        if own.max_examples < 100 * PROPERTY_TIMES:
            test._hypothesis_internal_use_settings = hypothesis.settings(
                own,
                max_examples=PROPERTY_TIMES * own.max_examples,
                suppress_health_check=list(hypothesis.HealthCheck),
                print_blob=True,
            )


@pytest.fixture
def no_figures(monkeypatch):
    """Leaves out the figures of reports, which take most of the time."""
    monkeypatch.setattr("gshard_nmt.evaluation.report.figures.image", lambda draw, kind: b"")
