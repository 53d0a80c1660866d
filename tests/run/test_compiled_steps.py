"""What a run compiles: each program once, under a key that contains everything it depends on."""

import json

import pytest

from gshard_nmt.run.arrays import step_functions
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.gin_reader import load_config
from tests.model.examples import NARROW

TINY = load_config("demo").replace(
    model={"encoder_layers": 0, "decoder_layers": 1, **NARROW, "experts": 0},
    data={"rows": 2, "target_length": 4, "source_vocabulary": 320, "target_vocabulary": 320},
    mesh={"shape": (1,)},
)


class FakeDevices:
    """Devices that keep what they are asked to compile, and compile nothing."""

    mesh = TINY.mesh

    def __init__(self) -> None:
        self.compiled: list[tuple[str, tuple[int, ...]]] = []

    def compile(self, key, lower, donate=(), meanwhile=None):
        self.compiled.append((key, tuple(donate)))
        if meanwhile:
            meanwhile()
        return lambda *groups: [{"step": groups}]

    def put(self, arrays, specs):
        assert {name: (a.shape, a.dtype) for name, a in arrays.items()} == {
            name: (spec.shape, spec.dtype) for name, spec in specs.items()
        }
        return dict(arrays)


def fake_steps(config: Config = TINY, **facts) -> CompiledSteps:
    return CompiledSteps(config, step_functions(config), FakeDevices(), **facts)


def key_of(config: Config) -> str:
    steps = fake_steps(config)
    _ = steps.train_step
    ((key, _),) = steps.devices.compiled
    return key


def test_each_program_is_compiled_once_and_only_the_training_step_reuses_its_input():
    steps = fake_steps()
    assert steps.devices.compiled == []
    for _ in range(2):
        assert steps.train_step is steps.train_step
    steps.compile_eval_step(meanwhile=lambda: None)
    names = [(json.loads(key)[0], donate) for key, donate in steps.devices.compiled]
    assert names == [("train", (0,)), ("evaluate", ())]


def test_a_new_run_compiles_what_makes_its_state_while_the_training_step_compiles():
    steps = fake_steps(is_new=True)
    _ = steps.train_step
    assert [json.loads(key)[0] for key, _ in steps.devices.compiled] == ["train", "initialize"]
    steps.initialize()
    assert len(steps.devices.compiled) == 2


def test_the_length_of_the_run_is_given_to_the_step_in_words_of_32_bits():
    control = fake_steps(TINY.replace(train={"steps": 90, "tokens": 7 * 2**32 + 5})).control()
    assert control["max_steps"] == 90
    assert control["max_tokens"].tolist() == [5, 7]


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("model", {"hidden_dim": 16}),
        ("model", {"label_smoothing": 0.2}),
        ("optimizer", {"learning_rate": 0.5}),
        ("data", {"rows": 4}),
        ("data", {"target_length": 8}),
        ("data", {"target_vocabulary": 400}),
        ("data", {"languages": ("fr", "de")}),
        ("train", {"gradient_jump": 10.0}),
    ],
)
def test_the_key_contains_what_the_training_step_depends_on(part, values):
    assert key_of(TINY.replace(**{part: values})) != key_of(TINY)


def test_runs_that_differ_in_seed_and_length_share_their_programs():
    assert key_of(TINY.replace(train={"seed": 7, "steps": 3})) == key_of(TINY)
