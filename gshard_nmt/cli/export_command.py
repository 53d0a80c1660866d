"""The flags of `gshard-export`."""

from absl.flags import FlagValues

from gshard_nmt import paths
from gshard_nmt.cli.flags import Command, Flags, define_checkpoint, existing_folder
from gshard_nmt.cli.search_flags import define_length_norm


def _define_export(flags: Flags) -> None:
    flags.text("workdir", "DIR|URL", "the run folder of the model; may be gs://bucket/folder")
    flags.text("out", "DIR", "the folder to make. An earlier export in it is replaced at the end")
    flags.choice(
        "format",
        "NAME",
        "savedmodel: a TensorFlow SavedModel, from text to text, which needs tensorflow and "
        "tensorflow-text to load",
        ["savedmodel"],
    )
    define_checkpoint(flags)
    flags.integer("beam", "K", "beam size; if not given, as in the run's config", None, minimum=1)
    define_length_norm(flags)
    flags.texts(
        "gin",
        "'NAME = VALUE'",
        "a setting of Decode that replaces the run's, such as 'Decode.source_lengths = (16, 128)'; may "
        "be given several times. An export always uses beam search",
    )


def _export(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    out = paths.local_path("out", values.out)
    search = {name: values[name].value for name in ("beam", "length_norm", "alpha")}
    flags = {name: value for name, value in search.items() if value is not None}
    from gshard_nmt.export import export
    from gshard_nmt.settings.changes import read_changes

    changes = read_changes(values.gin, classes=["Decode"]).and_decode(flags, "a flag")
    export(workdir, out, changes, values.checkpoint)


EXPORT = Command(
    "gshard-export",
    "writes a trained model as files that other software loads.",
    "gshard-export --workdir runs/demo --out exported --format savedmodel",
    ("workdir", "out", "format"),
    _define_export,
    _export,
)
