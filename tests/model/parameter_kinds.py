"""Counts weights by the kind of their layer; the papers leave out norms and tables of positions."""

from gshard_nmt.model.parameters import Parameters


def kind_of(name: str) -> str:
    """Returns the kind of a parameter by its name."""
    parts = name.split("/")
    if parts[-1] == "relative_bias":
        return "positions"
    if parts[-2:-1] in (["norm"], ["final_norm"]):
        return "norms"
    if parts[-1].endswith("embedding"):
        return "positions" if "position" in parts[-1] else "embeddings"
    sublayer = parts[-2].rpartition("_")[0]
    if sublayer == "moe":
        return "gates" if parts[-1] == "gate" else "experts"
    return "feed_forward" if sublayer == "feed_forward" else "attention"


def count_by_kind(declared: Parameters) -> dict[str, int]:
    """Returns the number of weights of each kind."""
    counts = dict.fromkeys(
        ("experts", "gates", "attention", "feed_forward", "embeddings", "norms", "positions"), 0
    )
    for name, parameter in declared.items():
        counts[kind_of(name)] += parameter.size
    return counts
