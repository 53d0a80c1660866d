"""The bilingual baselines: every budget and every end is named, and what is wrong with them."""

import json

from gshard_nmt.evaluation.opening import open_systems
from gshard_nmt.evaluation.report import baselines
from gshard_nmt.evaluation.report.baselines import baselines_section, kind_text, records_of
from gshard_nmt.evaluation.systems import System, Systems
from gshard_nmt.run.folder import RunFolder
from tests.evaluation.made_systems import made_test
from tests.evaluation.run_folders import make_run

TESTS = [made_test(tag, lines=2) for tag in ("fr", "de")]
RECORD = {
    "kind": "converged",
    "language": "fr",
    "size": "small",
    "dropout": 0.3,
    "vocabulary": "shared",
    "ended": "patience",
    "key": "0123456789",
    "weights": 2_345_678,
    "steps": 1400,
    "tokens": 1_234_567,
    "seconds": 312.0,
    "train_pairs": 9,
    "dev_bleu": 21.34,
    "limits": {"steps": 2000, "tokens": 0, "patience": 5, "minutes": 0},
}


def system(path, **changes) -> System:
    path.mkdir()
    (path / "baseline.json").write_text(json.dumps(RECORD | changes))
    return System(path.name, run=RunFolder(path))


def test_each_baseline_has_a_row_with_its_budget_and_its_end(tmp_path):
    of_each = (
        system(tmp_path / "fr", size="<b>small"),
        system(tmp_path / "de", language="de", kind="budget", ended="tokens", dropout=None),
        System("it", run=RunFolder(tmp_path / "it")),  # made by hand
    )
    records = records_of(of_each)
    part = baselines_section(records, 3)
    assert part.name == "baselines"
    for cell in ("2,345,678", "1,234,567", "1,400", "21.3", "dev BLEU did not improve", "0.3"):
        assert f"<td>{cell}</td>" in part.html
    for cell in ("limit of tokens", "of the config", "&lt;b&gt;small"):
        assert f"<td>{cell}</td>" in part.html
    header, *rows = part.html.split("<tr>")[1:]
    assert {row.count("<td>") + row.count("<th>") for row in (header, *rows)} == {10}
    french, german = part.data["languages"]
    assert (french["ended"], german["ended"]) == ("patience", "tokens")
    assert part.data["kind"] == (
        "1 of 3 baselines were trained until dev BLEU did not improve; 1 of 3 baselines saw as "
        "many tokens of their language as the multilingual model had when they were trained, and are "
        "not converged; of 1 it is not recorded how they were trained."
    )
    assert part.data["kind"] in part.html
    assert baselines.not_converged(records) == ["de"]
    assert baselines.caution(records, 3).startswith("1 of 3 baselines are not converged")
    assert baselines.caution({"fr": RECORD}, 1) == ""


def test_the_kind_of_baselines_in_words():
    assert kind_text({"fr": RECORD, "de": RECORD | {"ended": "minutes"}}, 2) == (
        "1 of 2 baselines were trained until dev BLEU did not improve; 1 ended at a limit before."
    )
    budgets = {n: RECORD | {"kind": "budget", "ended": n} for n in ("tokens", "steps")}
    assert kind_text(budgets, 2) == (
        "1 of 2 baselines saw as many tokens of their language as the multilingual model had when they "
        "were trained, and are not converged; 1 ended before they had seen as many."
    )
    assert kind_text({}, 4) == "It is not recorded how the baselines were trained."
    assert baselines_section({}, 4) is None


def test_the_facts_say_the_budgets_and_what_has_no_baseline(tmp_path):
    run = make_run(tmp_path / "run", ["fr", "de", "pl"])
    for tag in ("fr", "de"):
        make_run(tmp_path / "baselines" / tag, [tag])
    systems = open_systems(run, [*TESTS, made_test("pl")], baselines=tmp_path / "baselines")
    facts = dict(baselines.budget_facts(systems, {}))
    assert facts["multilingual model"] == "5 parameters, 9 steps, 1,350 tokens, 86400 s"
    assert facts["baselines"].startswith("2 bilingual models of 5 parameters each; 900 tokens in")
    (alarm,) = baselines.alarms(systems)
    assert alarm == "There is no baseline of pl-en; the mean gain is over the other directions."
    assert list(baselines.alarms(Systems(systems.main))) == []
