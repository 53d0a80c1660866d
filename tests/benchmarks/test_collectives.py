"""The benchmark of collectives, on virtual devices."""

from gshard_nmt.settings.config import find_config
from gshard_nmt.settings.gin_reader import load_config


def test_it_measures_every_collective_and_its_growth(load):
    config = load_config(str(find_config("demo")), ["Mesh.shape = (4,)"])
    times, growth = load("collectives").measured(config, 2, (1024,))
    for kind in ("all-to-all", "all-reduce", "all-gather", "collective-permute"):
        assert sum(line.startswith(f"| {kind}") for line in times.splitlines()) == 2
        assert kind in growth
