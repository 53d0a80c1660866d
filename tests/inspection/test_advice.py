from gshard_nmt.inspection.advice import suggestions
from gshard_nmt.inspection.memory import CATEGORIES, Memory
from gshard_nmt.settings.gin_reader import load_config


def needs(peak: int, hbm: int, activations: int) -> Memory:
    """An estimate with 2 GiB in each category but the activations."""
    categories = dict.fromkeys(CATEGORIES, 2**31) | {"activations": activations}
    return Memory(None, None, None, None, None, peak, hbm, categories, True)


def test_settings_that_would_make_it_fit_are_named():
    config = load_config("demo", ["Data.rows = 32"])
    lines = suggestions(config, needs(2**34, 3 * 2**32, 2**33))
    # 8 of 12 GiB are not activations. So 4 of the 8 GiB of activations fit, half of the rows.
    assert any("Data.rows = 16 instead of 32: " in line for line in lines)
    assert any("4.00 GiB are left for activations" in line for line in lines)
    assert any("splits the replicated weights (2.00 GiB)" in line for line in lines)
    # The gradients of 4 GiB of weights would be kept more than once.
    assert not any("Train.microbatches" in line for line in lines)
    lines = suggestions(config, needs(2**36, 3 * 2**32, 2**35))
    assert any(line.startswith("Train.microbatches = 2 computes") for line in lines)


def test_if_the_weights_alone_are_too_much_no_number_of_rows_is_advised():
    config = load_config("demo", ["Data.rows = 32"])
    lines = suggestions(config, needs(5 * 2**31, 2**32, 2**31))
    assert any("even without activations, 4.00 GiB more are needed" in line for line in lines)
    assert not any("Data.rows =" in line for line in lines)


def test_only_rows_and_microbatches_that_divide_are_advised():
    settings = ["Mesh.axes = ('x',)", "Mesh.shape = (4,)", "Mesh.rules = {'B': 'x'}"]
    memory = needs(2**34, 3 * 2**32, 2**33)
    # 4 of 8 GiB of activations fit: 10 of 20 rows, of which 8 divide over 4 devices.
    config = load_config("demo", ["Data.rows = 20", *settings])
    assert any("Data.rows = 8 " in line for line in suggestions(config, memory))
    # With two microbatches, each device has at least two rows.
    config = load_config("demo", ["Data.rows = 24", "Train.microbatches = 2", *settings])
    assert any("Data.rows = 8 " in line for line in suggestions(config, memory))
    config = load_config("demo", ["Data.rows = 4", *settings])
    lines = suggestions(config, needs(2**36, 2**36 - 2**30, 2**35))
    assert not any("Train.microbatches" in line for line in lines)
    assert any(
        "31.00 GiB are left for activations, and 4 rows, the fewest that divide" in line
        for line in lines
    )


def test_a_pipeline_is_not_advised_what_it_does_already():
    settings = ["Data.rows = 32", "Train.microbatches = 8", "Model.stack = 'pipeline'"]
    lines = suggestions(load_config("demo", settings), needs(2**36, 3 * 2**32, 2**35))
    assert not any("microbatches" in line or "Model.remat" in line for line in lines)


def test_a_search_is_advised_settings_of_decoding():
    config = load_config("demo", ["Decode.rows = 32", "Decode.beam = 4"])
    lines = suggestions(config, needs(2**34, 3 * 2**32, 2**33), decoding=True)
    assert lines[0].startswith("Decode.rows = 16 instead of 32: 4.00 GiB are left")
    assert lines[1].startswith("Decode.beam below 4")
    assert not any(name in line for line in lines for name in ("Data.", "Train.", "Model."))


def test_a_setting_that_is_in_use_is_not_advised():
    memory = needs(2**34, 3 * 2**32, 2**33)
    settings = ["Data.rows = 32", "Model.remat = 'layer'", "Model.activation_dtype = 'bfloat16'"]
    plain = suggestions(load_config("demo", settings[:1]), memory)
    used = suggestions(load_config("demo", settings), memory)
    assert set(plain) - set(used) == set(plain[:2])
    assert "Model.remat" in plain[0]
    assert "Model.activation_dtype" in plain[1]
