"""The run folder: whether a run may continue in it, and which directions it translates."""

import dataclasses
import json
import os
import pathlib
import shlex

import pytest

import gshard_nmt
from gshard_nmt import files
from gshard_nmt.data.sets.manifest import checksum, hash_of
from gshard_nmt.data.sets.shards import MANIFEST, PreparedData
from gshard_nmt.errors import UserError
from gshard_nmt.run.folder import RunFolder, identity_of
from gshard_nmt.settings.gin_reader import load_config
from tests.data.synthetic import write_prepared_data
from tests.run.facts import budget_facts, data_facts
from tests.run.fake_time import FakeTime

DEMO = load_config("demo")


@pytest.fixture
def data(tmp_path) -> PreparedData:
    """Prepared data of two languages."""
    return write_prepared_data(tmp_path / "data", DEMO.data, {"fr": 8, "pt-BR": 4})


def with_manifest(prepared: PreparedData, **changes) -> PreparedData:
    """Returns prepared data whose manifest has other contents, on the disk too."""
    manifest = prepared.manifest | changes
    (prepared.folder / MANIFEST).write_text(json.dumps(manifest))
    return dataclasses.replace(prepared, manifest=manifest)


@pytest.fixture
def run(tmp_path, data):
    """The folder of a run of the demo."""
    folder = RunFolder(tmp_path / "run")
    folder.claim(DEMO, data)
    return folder


def test_a_run_may_continue_for_more_steps_on_another_mesh(run, data):
    config = DEMO.replace(train={"steps": 9999}).replace(mesh={"shape": (4,)})
    before = run.config.read_text()
    run.claim(config, data)
    # Until it is known that the run can start, decoding reads the config that worked before.
    assert run.config.read_text() == before
    run.write_config(config)
    assert run.config.read_text() == config.text
    again = run.config.stat().st_ino
    run.write_config(config)
    assert run.config.stat().st_ino == again


def test_a_run_may_continue_as_a_pipeline_and_with_other_recomputation(run, data):
    compilation = {
        "stack": "pipeline",
        "stages": 2,
        "schedule": "circular",
        "remat": "layer",
        "remat_keeps": "experts",
    }
    depth = {"encoder_layers": 4, "decoder_layers": 4}
    assert set(compilation) == set(DEMO.model.COMPILATION)
    with pytest.raises(UserError) as caught:
        run.claim(DEMO.replace(model=compilation | depth), data)
    # Only the depth belongs to the model itself.
    assert "Model.decoder_layers: 2, now 4" in str(caught.value)
    assert not [name for name in compilation if f"Model.{name}" in str(caught.value)]
    run.claim(DEMO.replace(model=compilation | {"stages": 1, "initial_scale": 0.1}), data)


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("model", {"model_dim": 64}, "Model.model_dim: 128, now 64"),
        ("data", {"seed": 7}, "Data.seed: 1, now 7"),
        ("optimizer", {"learning_rate": 0.5}, "Optimizer.learning_rate: 1.5, now 0.5"),
    ],
)
def test_every_setting_that_changed_is_in_the_error(run, data, part, values, message):
    before = run.config.read_text()
    with pytest.raises(UserError) as raised:
        run.claim(DEMO.replace(**{part: values}), data)
    assert f"\n  {message}\n" in str(raised.value)
    assert run.config.read_text() == before
    # A run that has trained can be the start of one with other settings.
    assert "--init_from" not in str(raised.value)
    assert "no checkpoint, so nothing is lost if you remove the folder." in str(raised.value)
    budget = {"steps": 1, "parameters": 1, "seconds": 1.0, "tokens_by_language": {}}
    run.write_json("budget.json", budget)
    with pytest.raises(UserError) as raised:
        run.claim(DEMO.replace(**{part: values}), data)
    assert (f"--init_from {run.path} and a new" in str(raised.value)) == (part != "model")


def test_other_frozen_weights_are_refused_because_the_moments_do_not_fit(run, data):
    config = DEMO.replace(train={"freeze": ("encoder/*",), "steps": 7})
    with pytest.raises(UserError, match=r"Train\.freeze: \(\), now \('encoder/\*',\)") as caught:
        run.check(config, data)
    assert "steps" not in str(caught.value)


def test_other_data_of_the_same_settings_is_refused(run, data):
    subset = {"subset_fingerprints": {"back": "0123456789abcdef"}}
    for changes in ({"corpus_fingerprint": "xyz"}, subset, {"pairs": data.manifest["pairs"][:1]}):
        with pytest.raises(UserError, match="prepared data: other contents, though it was prepare"):
            run.claim(DEMO, with_manifest(data, **changes))


def test_a_folder_with_other_files_is_not_touched(tmp_path, data):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("1")
    with pytest.raises(
        UserError, match="has files in it and is not a run folder: chapter is in it"
    ):
        RunFolder(tmp_path / "thesis").claim(DEMO, data)
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter"]


def test_a_folder_with_a_log_or_a_new_volume_is_a_new_folder(tmp_path, data):
    """As after `gshard-train ... 2>&1 | tee runs/x/train.log`."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    names = ("train.log", "nohup.out", "lost+found", ".snapshot")
    for name in names:
        (run.path / name).touch()
    run.claim(DEMO, data)
    assert {*names, "data.json"} <= set(os.listdir(run.path))


def test_a_process_that_sees_the_folder_half_made_leaves_the_decision_to_the_first(tmp_path, data):
    (tmp_path / "run" / "programs").mkdir(parents=True)
    RunFolder(tmp_path / "run").check(DEMO, data, is_first=False)
    with pytest.raises(UserError, match="programs is in it, but no data"):
        RunFolder(tmp_path / "run").claim(DEMO, data)


def test_a_process_waits_until_it_sees_what_the_first_one_writes(tmp_path):
    """A network file system may show for a minute that a file is not there."""
    run = RunFolder(tmp_path)
    time = FakeTime(lambda: 60 < time.now < 60.15 and run.write_json("data.json", {}))
    run.wait_for("data.json", time)
    assert 60 < time.now < 61
    with pytest.raises(UserError) as raised:
        run.wait_for("baselines.json", time)
    assert str(raised.value) == (
        f"{tmp_path / 'baselines.json'}: this process does not see what process 0 wrote. All processes "
        "must see the same --workdir; give a folder on a shared file system."
    )


PAIRS = [{"source": s, "target": t} for s, t in (("fr", "de"), ("de", "fr"), ("fr", "en"))]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (("de", ""), ("de", "fr")),
        (("fr", "en"), ("fr", "en")),
        (("fra_Latn", "eng"), ("fr", "en")),
        (("de_DE", ""), ("de", "fr")),
        (("", ""), "--lang is missing: this model translates from de, fr; give one of them."),
        (("fr", ""), "--target is missing: from fr this model translates to de, en; give one of them."),
        (("nn", ""), "--lang nn: this model translates from de, fr. Choose one of these."),
        (
            ("fr", "enn"),
            "--target enn: from fr this model translates to de, en; did you mean 'en'? Choose one of "
            "these.",
        ),
    ],
)  # fmt: skip
def test_a_direction_is_chosen_by_any_code_and_only_what_does_not_follow_is_needed(
    tmp_path, asked, meant
):
    run = RunFolder(tmp_path)
    pairs = [pair | {"language": "fr", "train_pairs": 1} for pair in PAIRS]
    run.write_json("data.json", data_facts(pairs=pairs))
    if isinstance(meant, tuple):
        assert run.direction(*asked) == meant
        return
    with pytest.raises(UserError) as raised:
        run.direction(*asked)
    assert str(raised.value) == meant


def test_the_identity_of_a_run_is_recorded_and_stays(run, data):
    identity = run.identity()
    assert set(identity) == {"source.model", "target.model", "data", "config"}
    assert identity["source.model"] == checksum(data.folder / "source.model")
    for config in (DEMO, DEMO.replace(train={"steps": 9999})):
        RunFolder(run.path).claim(config, data)
        assert RunFolder(run.path).identity() == identity
    assert json.loads((run.path / "data.json").read_text())["version"] == gshard_nmt.__version__


def test_data_prepared_anew_with_another_vocabulary_is_refused_and_the_settings_are_named(
    run, data
):
    before = (run.path / "source.model").read_bytes()
    (data.folder / "source.model").write_bytes(b"another vocabulary")
    anew = data.manifest["data"] | {"vocabulary_sentences": 400_000, "character_coverage": 0.99}
    with pytest.raises(UserError) as raised:
        run.claim(DEMO, with_manifest(data, data=anew))
    lines = str(raised.value).splitlines()
    assert "  the prepared data: Data.character_coverage was 0.9995, now 0.99" in lines
    assert "  the prepared data: Data.vocabulary_sentences was 200000, now 400000" in lines
    assert any(line.startswith("  the source vocabulary: SHA-256 ") for line in lines)
    assert lines[-1].startswith("Use the config and data of that run, prepared as they were")
    assert (run.path / "source.model").read_bytes() == before


def test_a_temperature_that_prepare_only_prints_is_no_difference(run, data):
    run.claim(DEMO, with_manifest(data, temperature=99.0))


def test_data_that_is_swapped_under_a_run_is_noticed(run, data, monkeypatch):
    run.check_data(data)
    with_manifest(data, corpus_fingerprint="anew")
    with pytest.raises(UserError, match=r"was prepared anew while .* was training on it"):
        run.check_data(data)
    # The file server may not answer for a moment. That is no reason to lose the steps so far.
    (data.folder / MANIFEST).unlink()
    run.check_data(data)
    monkeypatch.setattr("gshard_nmt.reading.time.sleep", lambda _: None)
    (data.folder / MANIFEST).symlink_to(MANIFEST)
    run.check_data(data)


def contents_of(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_claim_that_ends_at_any_moment_can_be_made_again(tmp_path, data, monkeypatch):
    """Every write of a claim fails in turn, before the rename and after it."""
    written = []
    write = files.write

    def claim(folder: pathlib.Path) -> RunFolder:
        run = RunFolder(folder)
        # A run that is not known to start from another one would start from random weights.
        folder.mkdir(exist_ok=True)
        run.write_json("init.json", {"from": "old"})
        run.claim(DEMO, data)
        return run

    whole = claim(tmp_path / "whole")

    def failing(moment, renames):
        def write_and_fail(path, content):
            written.append(path.name)
            if len(written) > moment:
                if renames:
                    write(path, content)
                else:  # as a killed writer leaves it
                    path.with_name(f"{files.TEMPORARY_PREFIX}x").write_bytes(b"ha")
                raise OSError(28, "No space left on device")
            write(path, content)

        return write_and_fail

    for renames in (False, True):
        for moment in range(5):
            folder = tmp_path / f"run_{renames}_{moment}"
            written.clear()
            monkeypatch.setattr(files, "write", failing(moment, renames))
            with pytest.raises(OSError, match="No space left"):
                claim(folder)
            monkeypatch.setattr(files, "write", write)
            assert contents_of(claim(folder).path) == contents_of(whole.path)
    assert written == ["init.json", "source.model", "target.model", "config.gin", "data.json"]


def test_resuming_writes_no_vocabulary_unless_the_run_has_lost_it(run, data, monkeypatch):
    before = contents_of(run.path)
    inodes = {name: (run.path / name).stat().st_ino for name in before}
    RunFolder(run.path).claim(DEMO, data)
    assert {name: (run.path / name).stat().st_ino for name in before} == inodes
    (run.path / "source.model").write_bytes(b"flipped")
    (run.path / "target.model").unlink()
    for _ in range(2):
        with pytest.raises(UserError, match=r"source\.model is damaged or missing"):
            RunFolder(run.path).vocabularies()
    RunFolder(run.path).claim(DEMO, data)
    assert contents_of(run.path) == before


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"pairs": [', "it is not JSON"),
        ("{}", "format is missing"),
        (json.dumps(data_facts(pairs=[])), "pairs is []; it must be a list of 1 or more entries"),
        (json.dumps(data_facts(files={})), "files.source.model is missing"),
        (json.dumps(data_facts(["../b"])), 'pairs[0].source is "../b"; it must be a name without'),
    ],
)
def test_a_damaged_data_json_is_named(run, content, problem):
    (run.path / "data.json").write_text(content)
    with pytest.raises(UserError) as raised:
        RunFolder(run.path).direction("fr", "")
    assert f"{run.path / 'data.json'} is damaged: {problem}" in str(raised.value)


def test_a_damaged_budget_is_named(run):
    (run.path / "budget.json").write_text(json.dumps(budget_facts({"fr": -1})))
    with pytest.raises(UserError) as raised:
        run.budget()
    assert "budget.json is damaged: tokens_by_language.fr is -1" in str(raised.value)
    assert "Remove it; the next checkpoint of gshard-train writes it again." in str(raised.value)


@pytest.mark.parametrize("lines", [0, 5, -2])
def test_a_config_that_was_cut_is_not_resumed_from(run, data, lines):
    run.config.write_text("".join(run.config.read_text().splitlines(keepends=True)[:lines]))
    with pytest.raises(UserError, match=r"config\.gin is damaged: lines are missing at its end"):
        RunFolder(run.path).claim(DEMO, data)


def test_a_run_of_another_format_is_refused_with_its_version(run, data):
    facts = json.loads((run.path / "data.json").read_text())
    (run.path / "data.json").write_text(
        json.dumps(facts | {"format": "gshard-nmt run 9", "version": "9.0"})
    )
    for use in (lambda r: r.direction("fr", ""), lambda r: r.claim(DEMO, data)):
        with pytest.raises(
            UserError,
            match=r"has the format 'gshard-nmt run 9' of gshard-nmt 9\.0; this is gshard-",
        ):
            use(RunFolder(run.path))


def test_a_claim_removes_what_killed_writers_left(run, data):
    before = sorted(os.listdir(run.path))
    (run.path / f"{files.TEMPORARY_PREFIX}0123").write_bytes(b"half")
    (run.path / f"{files.TEMPORARY_PREFIX}4567").mkdir()
    # An export into the run folder may be at work, or was killed.
    (run.path / f"{files.TEMPORARY_PREFIX}export" / "new").mkdir(parents=True)
    (run.path / f"{files.TEMPORARY_PREFIX}export.lock").touch()
    for folder in ("programs", "checkpoints/2"):
        (run.path / folder).mkdir(parents=True)
        for name in ("old", "new"):
            (run.path / folder / f"{files.TEMPORARY_PREFIX}{name}").touch()
        os.utime(run.path / folder / f"{files.TEMPORARY_PREFIX}old", (1e9, 1e9))
    RunFolder(run.path).claim(DEMO, data)
    exports = [f"{files.TEMPORARY_PREFIX}export", f"{files.TEMPORARY_PREFIX}export.lock"]
    assert sorted(os.listdir(run.path)) == sorted([*before, *exports, "programs", "checkpoints"])
    for folder in ("programs", "checkpoints/2"):
        assert os.listdir(run.path / folder) == [f"{files.TEMPORARY_PREFIX}new"]


def test_decoding_uses_the_programs_of_a_run_folder_only_if_they_are_trusted(run, monkeypatch):
    own = run.path.with_name("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(own))
    run.programs.mkdir()
    users = own / "gshard-nmt" / "programs"
    assert run.programs_to_decode == users
    trusting = RunFolder(run.path, trust_programs=True)
    assert trusting.programs_to_decode == run.programs
    run.programs.rmdir()
    # A run folder that cannot be written gets no folder for them.
    assert trusting.programs_to_decode == users


def test_each_new_command_is_recorded_once_and_may_have_several_lines(tmp_path):
    """`--gin $'STEPS = 14\\nTrain.log_every = 2'` sets two settings with one flag."""
    run = RunFolder(tmp_path)
    assert run.commands() == []
    commands = [
        shlex.join(["gshard-train", "--gin=STEPS = 14\n\nTrain.log_every = 2", f"--data={data}"])
        for data in ("a", "it's \u2028 'b'\n")
    ]
    for command in [commands[0], *commands, commands[1], ""]:
        run.record_command(command)
    assert run.commands() == commands
    with (tmp_path / "command.txt").open("a") as file:
        file.write("gshard-train --data='cut")
    assert run.commands() == commands
    (tmp_path / "command.txt").write_bytes(b"\xff")
    run.record_command("gshard-train")
    assert (tmp_path / "command.txt").read_bytes() == b"\xff"


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"model": {"model_dim": 64}}, {"config"}),
        ({"data": {"seed": 9}}, {"config"}),
        ({"optimizer": {"learning_rate": 0.5}}, {"config"}),
        ({"mesh": {"shape": (4,)}}, set()),
        ({"train": {"steps": 5}}, set()),
        ({"decode": {"beam": 2}}, set()),
    ],
)
def test_model_data_and_optimizer_are_part_of_the_identity(data, change, names):
    before, after = identity_of(DEMO, data), identity_of(DEMO.replace(**change), data)
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} == names


def test_the_place_of_the_data_and_the_order_of_its_manifest_do_not_matter(data, tmp_path):
    before = identity_of(DEMO, data)
    moved = dataclasses.replace(data, folder=data.folder.rename(tmp_path / "moved"))
    assert identity_of(DEMO, moved) == before
    assert hash_of(dict(reversed(data.manifest.items()))) == hash_of(data.manifest)
