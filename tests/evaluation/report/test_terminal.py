from gshard_nmt.evaluation.report import terminal
from gshard_nmt.evaluation.report.report import LanguageResult, Report, Section
from tests.evaluation.made_systems import system_of


def test_the_terminal_shows_scores_systems_alarms_and_signatures(capsys, tmp_path):
    rows = [LanguageResult("fr", 1000, 50, 31.25, 40.0, 21.0, (8.0, 12.0))]
    section = Section("study", "A study", "", None, ("[red] alarm",))
    signatures = {"bleu": "v:1", "chrf": "w:1"}
    systems = [system_of("a", {0: 31.25}), system_of("b", {0: 30.0})]
    terminal.show(Report(rows, signatures, [], "a run", [section], systems), tmp_path)
    out = capsys.readouterr().out
    for text in ("31.2", "+10.2", "+8.0 to +12.0", "[red] alarm", "BLEU v:1", "systems"):
        assert text in out
    assert f"report: {tmp_path / 'index.html'}" in out.replace("\n", "")


def test_one_system_has_no_table_of_systems(capsys):
    rows = [LanguageResult("fr", 1000, 50, 31.25, 40.0)]
    terminal.show(Report(rows, {"bleu": "v:1", "chrf": "w:1"}, [], "a run"), None)
    out = capsys.readouterr().out
    assert "systems" not in out
    assert "baseline" not in out
    assert "report:" not in out
