"""The flags of other systems: what to give in their place."""

import dataclasses

import pytest

from gshard_nmt.cli import commands, field_words
from gshard_nmt.cli.flags import Flags
from gshard_nmt.settings.config import CLASSES


@pytest.mark.parametrize(
    ("program", "words", "advice"),
    [
        ("train", ["--steps", "100"], "use --gin 'Train.steps = 100'"),
        ("train", ["--max-steps=100"], "use --gin 'Train.steps = 100'"),
        ("train", ["--batch-size", "many"], "use --gin 'Data.rows = 64'"),
        ("train", ["--lr", "5e-4"], "use --gin 'Optimizer.learning_rate = 1.0', the factor of"),
        ("train", ["--epochs", "3"], "a run is counted in steps: --gin 'Train.steps = 10000'"),
        ("train", ["--seed", "7"], "use --gin 'Train.seed = 7'"),
        ("train", ["--gpus", "8"], "use --gin 'Mesh.shape = (8,)'"),
        ("train", ["--output_dir", "x"], "use --workdir"),
        ("train", ["--model", "big"], "use --config"),
        ("train", ["--resume"], "the same command resumes"),
        ("decode", ["--model", "x"], "use --workdir"),
        ("decode", ["--num-beams", "5"], "use --beam"),
        ("decode", ["--batch_size", "32"], "use --gin 'Decode.rows = 32'"),
        ("eval", ["--zebra"], ""),
    ],
)
def test_a_flag_of_another_system_is_answered_with_ours(capsys, program, words, advice):
    assert commands.main([program, *words]) == 2
    expected = f"there is no flag --{words[0].partition('=')[0][2:]}"
    expected += f"; {advice}" if advice else ". See"
    assert expected in capsys.readouterr().err


def test_every_word_of_another_system_leads_to_a_flag_or_a_setting_that_is_there():
    settings = {field.name for cls in CLASSES.values() for field in dataclasses.fields(cls)}
    known = []
    for command in (commands.TRAIN, commands.DECODE):
        flags = Flags()
        command.define(flags)
        known.append(set(flags.values))
    for name, words in field_words._SAME.items():
        assert name in settings.union(*known), name
        assert not (set(words.split()) & known[0]), words
