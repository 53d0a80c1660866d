"""The figure of a plan shows every component, and is the same each time."""

from gshard_nmt.data.batching import plan_figure
from gshard_nmt.data.batching.mixture import Mixture, sampling_rates
from gshard_nmt.data.batching.plan import Component, Phase, make_plan


def test_the_most_drawn_have_a_color_and_the_others_share_one():
    sizes = tuple(1000 // n for n in range(1, 15))
    components = [Component(f"l{n}", size, 10.0) for n, size in enumerate(sizes)]
    phases = [Phase(1, 60, "a"), Phase(61, 100, "b")]
    rates = tuple(sampling_rates(sizes, 5.0))
    plan = make_plan(components, Mixture((rates, rates), 8, 1), phases, [500.0, 500.0])
    shares, epochs = plan_figure.draw(plan).axes
    names = [text.get_text() for text in shares.get_legend().get_texts()]
    assert names[0] == "4 others"
    assert names[-1] == "l0"
    assert len(names) == 11
    assert len(epochs.collections[0].get_offsets()) == 14
    assert plan_figure.image(plan, "svg") == plan_figure.image(plan, "svg")
