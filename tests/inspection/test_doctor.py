from gshard_nmt.cli import commands
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.inspection import doctor
from gshard_nmt.inspection.doctor import DoctorRequest, examine
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.gin_reader import load_config
from tests.data.synthetic import write_prepared_data


def list_of(request: DoctorRequest) -> list[doctor.Finding]:
    return list(examine(request))


def problems(request: DoctorRequest, area: str = "") -> list[str]:
    return [f.text for f in list_of(request) if f.is_problem and area in ("", f.area)]


def test_the_report_of_a_good_run_lists_what_was_checked(tmp_path):
    findings = list_of(DoctorRequest("demo", workdir=tmp_path / "not" / "yet"))
    assert [finding.area for finding in findings] == ["config", "mesh", "memory", "disk"]
    assert not any(finding.is_problem for finding in findings)


def test_a_wrong_setting_hides_no_other_section(tmp_path):
    wrong = [
        "Model.head = 3",  # unknown
        "Train.steps = %STEPPS",  # a macro without value
        "Model.heads = 0",
        "Model.experts = 7",  # does not divide over the mesh of 2
    ]
    (tmp_path / "file").touch()
    findings = list_of(DoctorRequest("demo", wrong, tmp_path, tmp_path / "file" / "run"))
    wrong_findings = [finding for finding in findings if finding.is_problem]
    areas = ["config", "config", "config", "mesh", "data", "disk"]
    assert [finding.area for finding in wrong_findings] == areas
    texts = [finding.text for finding in wrong_findings]
    assert texts[0].startswith("--gin 'Model.head = 3': Model has no setting 'head'; did you ")
    assert "the macro %STEPPS has no value" in texts[1]
    assert texts[2] == "Model.heads is 0; it must be from 1 to 16777216."
    assert texts[3].startswith("Model.experts: dimension E has size 7, which does not divide over ")
    assert texts[5] == (
        f"--workdir {tmp_path / 'file' / 'run'}: {tmp_path / 'file'} is a file; give a folder."
    )
    notes = [finding.text for finding in findings if finding.mark == "note"]
    assert notes == ["the checks below use these defaults instead: Model.heads = 4"]
    wrong[3] = "Train.freeze = ('nonsense/*',)"
    assert [finding.text for finding in list_of(DoctorRequest("demo", wrong))][:3] == texts[:3]
    frozen = list_of(DoctorRequest("demo", wrong))[-1]
    assert frozen.is_problem
    assert frozen.text.startswith("Train.freeze has 'nonsense/*'")


def test_after_a_syntax_error_the_report_says_that_the_file_was_read_in_part(tmp_path):
    config = tmp_path / "my.gin"
    config.write_text("Model.heads = 0\nModel.head_dim =\nModel.experts = -1\n")
    texts = problems(DoctorRequest(str(config), ["Data.rows = 0"]), "config")
    assert len(texts) == 3
    assert texts[0].startswith(f"{config}, line 2: cannot read 'Model.head_dim ='; a setting is ")
    assert texts[0].endswith(" The rest of this file was not read.")
    assert texts[1:] == [
        "Model.heads is 0; it must be from 1 to 16777216.",
        "Data.rows is 0; it must be from 1 to 16777216.",
    ]


def test_every_size_that_does_not_divide_is_listed_with_the_nearest_legal_sizes():
    texts = problems(
        DoctorRequest("demo", ["Mesh.shape = (3,)", "Model.num_groups = 7", "Data.rows = 32"]),
        "mesh",
    )
    assert [text.partition(":")[0] for text in texts] == [
        "Data.rows",
        "Model.experts",
        "Data.rows and Data.source_length",
        "Data.rows and Data.target_length",
    ]
    assert "the nearest legal sizes are 30 or 33" in texts[0]
    assert "dimension E has size 8" in texts[1]
    assert "[4, 8]" in texts[2]
    lengths = ["Mesh.rules = {'L': 'x'}", "Mesh.shape = (2,)", "Data.source_length = 31"]
    assert any("source_ids" in text for text in problems(DoctorRequest("demo", lengths), "mesh"))


def test_prepared_data_with_another_vocabulary_and_longer_rows(tmp_path):
    prepared = Data(source_length=96, target_length=48, target_vocabulary=5000)
    write_prepared_data(tmp_path / "data", prepared, {"de": 4})
    tmp_path = tmp_path / "data"
    assert problems(DoctorRequest("demo", ["Data.languages = ('fr',)"], data=tmp_path), "data") == [
        f"--data {tmp_path} has examples of up to 96 tokens, but Data.source_length is 64; set it to 96 "
        "or more, or prepare the data again.",
        f"--data {tmp_path} was prepared with Data.target_vocabulary = 5000, but the config has 4000; "
        "use the same value, or prepare the data again.",
        f"Data.languages names 'fr', which --data {tmp_path} does not have. It has: de.",
    ]


def test_what_only_training_would_refuse(tmp_path):
    write_prepared_data(tmp_path / "data", Data(target_length=48), {"de": 4})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "letter.txt").touch()
    wrong = ["Train.best_metric = 'dev_nll/fr'"]
    texts = problems(DoctorRequest("demo", wrong, tmp_path / "data", tmp_path / "run"), "data")
    assert [text[:61] for text in texts] == [
        "Train.best_metric is 'dev_nll/fr', and the run has no dev tex",
        f"--workdir {tmp_path / 'run'} has files in it and is not"[:61],
    ]
    assert not problems(DoctorRequest("demo", (), tmp_path / "data", tmp_path / "free"), "data")
    named = DoctorRequest("demo", ["Data.minimum_pairs = 7"], tmp_path / "data")
    assert "Data.minimum_pairs" in problems(named, "data")[0]
    # A run keeps the precision that 'auto' had on the machine where it began.
    begun = RunFolder(tmp_path / "begun")
    begun.path.mkdir()
    demo = load_config("demo").replace(model={"matmul_precision": "default"})
    data = PreparedData.open(tmp_path / "data")
    begun.claim(demo.replace(data=data.fitted(demo.data)), data)
    assert not problems(DoctorRequest("demo", (), tmp_path / "data", begun.path), "data")


def test_if_a_machine_has_too_little_memory_the_message_says_how_much_is_missing():
    big = ["EXPERTS = 2048", "Model.num_groups = 2", "Model.model_dim = 1024"]
    (text,) = problems(DoctorRequest("demo", [*big, "Model.expert_hidden_dim = 8192"]), "memory")
    assert text.startswith("the training state takes ")
    assert text.endswith("; make the model smaller, or take a machine with more memory.")


def test_a_full_disk_is_a_problem(monkeypatch, tmp_path):
    usage = doctor.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    (text,) = problems(DoctorRequest("demo", workdir=tmp_path), "disk")
    assert "4 checkpoints take" in text
    assert f"of the 1,000 B free at {tmp_path}" in text


def test_the_program_ends_with_the_number_of_problems(capsys):
    assert commands.main(["inspect", "--config=demo", "--doctor", "--gin=Data.rows = 33"]) == 2
    captured = capsys.readouterr()
    assert "PROBLEM  mesh    Data.rows: dimension B has size 33" in captured.out
    assert "problem" in captured.err
    assert commands.main(["inspect", "--config=demo", "--doctor"]) == 0


def test_all_of_the_data_is_read_only_if_the_user_asks(tmp_path):
    write_prepared_data(tmp_path / "data", Data(target_length=48), {"de": 4})
    (shard,) = (tmp_path / "data" / "de-en").glob("train-*")
    content = shard.read_bytes()
    shard.write_bytes(content[:100] + b"x" + content[101:])
    data = tmp_path / "data"
    assert problems(DoctorRequest("demo", data=data), "data") == []
    assert problems(DoctorRequest("demo", data=data, reads_data=True), "data") == [
        f"de-en/{shard.name} of {data} was changed since it was prepared; prepare the data again"
    ]
