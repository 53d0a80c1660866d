"""The configuration of a run: its seven parts, its text in the run folder, and its file."""

import dataclasses
import pathlib
import pprint
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.config import Data
from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.model.config import Model
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.ranges import (
    MOST,
    Rule,
    above,
    at_least,
    between,
    check,
    matching,
    one_of,
    rate,
    size,
)
from gshard_nmt.spmd.mesh import Mesh

LENGTH_NORMS = ("gnmt", "lingvo", "none")
"""How the score of a hypothesis allows for its length; decoding/beam_search.py has the formulas."""

PRECISIONS = ("model", "bfloat16")
"""The precisions of products in decoding; model/decoding_weights.py explains them."""

EXPANSIONS = ("eos_aside", "fairseq", "lingvo")
"""How beam search selects the next beams; decoding/beam_search.py explains them."""


@dataclasses.dataclass(frozen=True)
class Train:
    """How long a run trains, how often it logs, saves and validates, and what it does in trouble."""

    # Length
    steps: int = 10_000
    """The run ends after this number of training steps."""
    tokens: int = 0
    """The run also ends as soon as it has seen this number of tokens, source and target, without
    padding. 0 means no limit."""
    patience: int = 0
    """The run also ends after this number of validations in a row without a better score. While dev BLEU
    is still 0, they are not counted. 0 means that it never ends early."""

    # Batch
    microbatches: int = 1
    """The number of parts into which each batch is divided; a part has every n-th row. A pipeline works
    on several parts at once. Without a pipeline they are computed one after another, and their gradients
    are added up, so a batch needs less memory. `Model.num_groups` counts the groups of the whole batch;
    each part divides its own rows into its share of them."""

    # Randomness
    seed: int = 1
    """Seed of the initial weights and of dropout. Data.seed is the seed of the order of the data."""

    # Frozen weights
    freeze: Sequence[str] = ()
    """Patterns of the names of weights that training does not change, such as ('encoder/*',).
    parameters.txt in the run folder lists the names after 'parameters/'; `*` stands for any text. A
    frozen weight has no state of the optimizer."""

    # Average of the weights
    ema: float = 0.0
    """The decay of an exponential moving average of the weights, such as 0.999. Each step moves the
    average towards the new weights by a share of 1 - decay. In step t the decay is at most
    (1 + t) / (10 + t). Validation and decoding then use the average instead of the weights. 0 turns it
    off."""

    # Divergence
    gradient_jump: float = 100.0
    """If a loss, a gradient or an update is not finite, or the gradient norm jumps, the step leaves the
    weights and the moments as they were, and training goes on with the next batch. It stops after 50 such
    steps in a row. A norm jumps if it is more than this factor above the usual norm, a running geometric
    mean. The first 50 steps only set the usual norm. 0 turns this check of the norm off."""

    # Logging and checkpoints
    log_every: int = 50
    """Steps between two lines of metrics.jsonl."""
    checkpoint_every: int = 500
    """Steps between two checkpoints."""
    keep_last: int = 2
    """The number of newest checkpoints that are kept. With two, a damaged checkpoint does not end the
    run."""
    keep_every: int = 0
    """The checkpoint of every step that is a multiple of this number is kept. 0 turns this off."""
    keep_best: int = 1
    """The number of best checkpoints that are kept. Decoding uses the best one, or the last if there is
    none."""
    best_metric: str = ""
    """The score that chooses the best checkpoint: 'dev_nll' (the lowest) or 'dev_bleu' (the highest),
    or the score of one language, such as 'dev_bleu/fr'. The default '' is 'dev_bleu' if
    Train.bleu_sentences is set, otherwise 'dev_nll'."""

    # Validation
    dev_every: int = 500
    """Steps between two validations on dev text. A validation saves a checkpoint first. The last step
    always validates. 0 turns validation off."""
    dev_batches: int = 2
    """The number of dev batches of each language that `dev_nll` is computed on."""
    bleu_sentences: int = 0
    """The number of dev sentences of each direction that are decoded to compute dev BLEU. The score of a
    language is the mean of its directions. 0 turns dev BLEU off."""

    RULES: ClassVar[Sequence[Rule]] = (
        at_least(1, "steps", "microbatches", "log_every", "checkpoint_every", "dev_batches"),
        at_least(2, "keep_last"),
        at_least(0, "keep_every", "keep_best", "dev_every", "bleu_sentences", "patience"),
        between(0, 2**63 - 1, "tokens"),
        rate("ema"),
        Rule(
            ("gradient_jump",),
            lambda value: value == 0 or 1 < value <= MOST,
            f"above 1 and at most {MOST}, or 0",
            "above 1, or 0",
        ),
        between(0, 2**32 - 1, "seed"),
        matching(
            "(dev_(nll|bleu)(/[^/]+)?)?",
            "'dev_nll' or 'dev_bleu', with or without a language as in 'dev_nll/fr'; or ''",
            "best_metric",
        ),
    )

    def __post_init__(self) -> None:
        check(self, self.RULES)
        if self.best_metric.startswith("dev_bleu") and not self.bleu_sentences:
            raise UserError(
                f"Train.best_metric is {self.best_metric!r} and Train.bleu_sentences is 0, so BLEU is "
                "not computed. Set Train.bleu_sentences to 1 or more, or choose 'dev_nll'.",
                ["Train.best_metric", "Train.bleu_sentences"],
            )

    @property
    def metric(self) -> str:
        return self.best_metric or ("dev_bleu" if self.bleu_sentences else "dev_nll")

    def metric_problems(self, languages: Sequence[str]) -> Iterator[str]:
        """Yields a problem if `best_metric` is the score of a language without dev text."""
        _, slash, language = self.best_metric.partition("/")
        if slash and language not in languages:
            yield (
                f"Train.best_metric is {self.best_metric!r}, and the run has no dev text of {language!r}"
                f"{did_you_mean(language, languages)} It has {', '.join(languages) or 'none'}; choose "
                "one of them, or leave the setting out."
            )


@dataclasses.dataclass(frozen=True)
class Decode:
    """How sentences are translated: beam search or sampling, and the shapes of the batches."""

    # Search
    method: str = "beam"
    """'beam' searches for the best translations with flat beam search. 'sample' draws random
    translations."""
    beam: int = 4
    """K, the number of hypotheses that the search keeps for each sentence."""
    expansion: str = "eos_aside"
    """How the search selects the next beams. 'eos_aside' takes the best tokens that do not end a
    hypothesis. So does 'fairseq', but a hypothesis can end only if its end is among the K best of all
    tokens; with beam 1 and `length_norm` 'none' this is greedy search. With 'lingvo', the rule of
    GShard's authors, the end of a hypothesis uses one of the K places."""
    length_norm: str = "gnmt"
    """How scores allow for length: 'gnmt' divides by ((5 + length) / 6) ** alpha, 'lingvo' by
    ((4 + length) / 5) ** alpha (the code of GShard's authors, who set alpha to 0.8), 'none' by 1."""
    alpha: float = 0.6
    """The exponent of the length norm."""

    # Numbers
    precision: str = "model"
    """The precision of products with weights: 'model' is that of the model's training. 'bfloat16' is
    faster on CPUs that have instructions for it; sums, attention, norms and the gate stay float32."""

    # Sampling
    temperature: float = 1.0
    """Log-probabilities are divided by this number before a token is drawn. Below 1, likely tokens
    become likelier. Scores do not depend on it."""
    top_k: int = 0
    """Each token is drawn from the top_k likeliest ones. 0 means no limit."""
    top_p: float = 1.0
    """Each token is drawn from the fewest likeliest tokens whose probabilities, after top_k, add up to
    top_p. 1 means all."""
    seed: int = 1
    """Seed of the random numbers. They depend on the seed and the sentence alone, so a sentence has the
    same samples in every file."""

    # Lengths
    length_ratio: float = 2.0
    """A translation has at most length_ratio * source tokens + length_margin tokens, and never more
    than Data.target_length."""
    length_margin: int = 8
    """The number of tokens that is added to length_ratio * source tokens."""

    # Batches
    rows: int = 64
    """B, the number of sentences in a batch. It is rounded up to a number that divides over the mesh;
    on a CPU, also to one that gives each device a multiple of 64 hypotheses."""
    source_lengths: Sequence[int] = (16, 64)
    """The source lengths that programs are compiled for, in tokens, end of sentence included. A
    sentence uses the smallest length that holds it. A line longer than all of them is translated in
    pieces: it is split at the ends of its sentences. For dev BLEU during training it is cut."""

    RULES: ClassVar[Sequence[Rule]] = (
        size("beam", "rows", "source_lengths"),
        size("length_margin", least=0),
        between(0, 1000, "length_ratio"),
        one_of(("beam", "sample"), "method"),
        one_of(EXPANSIONS, "expansion"),
        one_of(LENGTH_NORMS, "length_norm"),
        one_of(PRECISIONS, "precision"),
        between(0, 10, "alpha"),
        between(0.01, 100, "temperature"),
        size("top_k", least=0),
        above(0, "top_p", most=1),
        at_least(0, "seed"),
    )

    def __post_init__(self) -> None:
        check(self, self.RULES)
        if not self.source_lengths:
            message = "Decode.source_lengths is []; it must have at least one length."
            raise UserError(message, ["Decode.source_lengths"])
        shortest = min(self.source_lengths)
        if int(self.length_ratio * shortest) + self.length_margin < 1:
            raise UserError(
                f"Decode.length_ratio is {self.length_ratio} and Decode.length_margin is "
                f"{self.length_margin}, so the translation of a source of {shortest} tokens is limited "
                "to 0 tokens. Set the margin to 1 or more.",
                ["Decode.length_ratio", "Decode.length_margin", "Decode.source_lengths"],
            )

    def settings(self) -> str:
        """Returns a short text that names the settings of the search."""
        others = ("precision", "length_ratio", "length_margin")
        norm = f"{self.length_norm} length norm, alpha {self.alpha:g}" + "".join(
            f", {name} {value}"
            for name in others
            if (value := getattr(self, name)) != getattr(Decode, name)
        )
        if self.method == "sample":
            return (
                f"sampled with temperature {self.temperature:g}, top_k {self.top_k}, "
                f"top_p {self.top_p:g}, seed {self.seed}, {norm}"
            )
        expansion = "" if self.expansion == "eos_aside" else f", {self.expansion} expansion"
        return f"beam {self.beam}{expansion}, {norm}"


Key = tuple[str, str]
"""The name of a setting: its class and its field, such as ("Model", "model_dim")."""


@dataclasses.dataclass(frozen=True)
class Config:
    """The resolved configuration of one run: one instance of each class of settings."""

    model: Model
    mesh: Mesh
    data: Data
    optimizer: Optimizer
    train: Train
    decode: Decode
    cleaning: Cleaning = dataclasses.field(default_factory=Cleaning)

    @property
    def text(self) -> str:
        """All settings as gin bindings. Equal settings give equal text."""
        return as_gin(self.parts)

    @property
    def parts(self) -> list[Any]:
        return [getattr(self, field.name) for field in dataclasses.fields(self)]

    def replace(self, **parts: Any) -> Self:
        """Returns a copy in which some settings are changed and checked.

        Each part is a mapping of the changed fields, as in `train={"steps": 10}`, or a whole new part.
        """
        changed = {
            name: dataclasses.replace(getattr(self, name), **part)
            if isinstance(part, Mapping)
            else part
            for name, part in parts.items()
        }
        return dataclasses.replace(self, **changed)


CLASSES: Mapping[str, type] = {
    cls.__name__: cls for cls in (Model, Mesh, Data, Optimizer, Train, Decode, Cleaning)
}
"""The classes of settings by name. A part of a `Config` has the name of its class in lower case."""


def named_settings(parts: Iterable[Any]) -> dict[Key, object]:
    """Returns every setting of these parts by name, defaults included, in the order of their fields."""
    return {
        (type(part).__name__, field.name): getattr(part, field.name)
        for part in parts
        for field in dataclasses.fields(part)
    }


GIN_HEADER = "# The resolved configuration of this run: every setting with its value."
GIN_END = "# End of the configuration."
"""The first and the last line of the text of a config. A text without its last line was cut."""


def as_gin(parts: Iterable[object]) -> str:
    """Returns the settings of these parts as gin bindings. Equal settings give equal text."""
    lines = [GIN_HEADER]
    for part in parts:
        lines.append("")
        for (class_name, field), value in named_settings([part]).items():
            literal = pprint.pformat(_plain(value), width=96, sort_dicts=False)
            lines.append(f"{class_name}.{field} = {literal}")
    return "\n".join([*lines, "", GIN_END]) + "\n"


def differences(recorded: object, current: object) -> list[str]:
    """Returns a line for each setting that differs, such as "Model.heads: 4, now 6"."""
    now = named_settings([current])
    return [
        f"{class_name}.{field}: {value!r}, now {now[class_name, field]!r}"
        for (class_name, field), value in named_settings([recorded]).items()
        if now[class_name, field] != value
    ]


def _plain(value: object) -> object:
    """Turns lists into tuples and mappings into dicts, so that equal settings have equal text."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, Mapping):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    return value


def configs_folder() -> pathlib.Path:
    """Returns the folder of our configs. A wheel has them inside the package, a checkout beside it."""
    package = pathlib.Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def find_config(source: str) -> pathlib.Path:
    """Returns the file of a path, or of a name: that of a file in configs/experiments without `.gin`."""
    path, folder = pathlib.Path(source), configs_folder()
    names = {file.stem: file for file in sorted(folder.glob("experiments/*.gin"))}
    if path.is_file():
        return path
    if source in names:
        return names[source]
    if path.is_dir():
        inside = path / "config.gin"
        hint = f"; did you mean {str(inside)!r}?" if inside.is_file() else "; give a .gin file."
        raise UserError(f"--config {source} is a folder{hint}")
    if not path.is_absolute() and (folder / path).is_file():
        return folder / path
    is_name = path.suffix != ".gin" and len(path.parts) == 1
    problem = f"there is no {f'config called {source!r}' if is_name else f'file {source}'}"
    raise UserError(
        f"{problem}{did_you_mean(path.stem, names)} Give the path of a .gin file, or one of the "
        f"names: {', '.join(names)}."
    )
