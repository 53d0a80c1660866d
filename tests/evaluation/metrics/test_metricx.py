"""MetricX reads source, translation and reference, and its error is a mean over references."""

import contextlib
import sys
import types

import numpy as np
import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.metrics import metrics, metricx
from gshard_nmt.evaluation.metrics.metrics import Measures

END = 1


@pytest.fixture
def packages(monkeypatch):
    """Replaces the packages by a model whose error is the number of pieces. Returns its texts."""
    texts = []

    def tokenize(text, max_length, truncation):
        assert (max_length, truncation) == (1536, True)
        texts.append(text)
        return {"input_ids": [*(9 for _ in text.split()), END]}

    class Model:
        def eval(self):
            pass

        def __call__(self, input_ids, attention_mask):
            assert END not in input_ids
            assert attention_mask.shape == input_ids.shape
            return types.SimpleNamespace(predictions=[input_ids.shape[1]])

    def loads(value):
        def from_pretrained(name, local_files_only):
            assert local_files_only
            return value

        return types.SimpleNamespace(from_pretrained=from_pretrained)

    modules = {
        "metricx24": {},
        "metricx24.models": {"MT5ForRegression": loads(Model())},
        "transformers": {"AutoTokenizer": loads(tokenize)},
        "torch": {
            "tensor": np.array,
            "ones_like": np.ones_like,
            "no_grad": contextlib.nullcontext,
        },
    }
    for name, contents in modules.items():
        module = types.ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    metricx._predictor.cache_clear()
    yield texts
    metricx._predictor.cache_clear()


def test_the_error_is_the_mean_over_sentences_and_references(packages, tmp_path):
    measures = Measures(("metricx",), metricx_model=tmp_path / "large")
    references = [["one", "two"], ["one one", "two two two"]]
    result = metrics.scores(["eins", "zwei"], references, "en", measures, ["un", "deux"])
    assert packages[0] == "source: un candidate: eins reference: one"
    # Each text has five words besides those of the reference.
    assert result["metricx"].value == 5 + (1 + 1 + 2 + 3) / 4
    assert result["metricx"].signature == "nrefs:2|model:large|version:24"


def test_the_sources_are_needed(tmp_path):
    measures = Measures(("metricx",), metricx_model=tmp_path)
    with pytest.raises(UserError, match="metricx reads the sources too"):
        metrics.scores(["one"], [["one"]], "en", measures)


def test_the_model_is_needed(monkeypatch):
    monkeypatch.setattr(metricx, "missing_packages", list)
    with pytest.raises(UserError, match=r"Give the folder with --metricx_model DIR\."):
        Measures(("metricx",)).check()
