"""The flags of `gshard-import`."""

from absl.flags import FlagValues

from gshard_nmt import paths
from gshard_nmt.cli.flags import Command, Flags, existing_folder


def _define_import(flags: Flags) -> None:
    flags.text(
        "from",
        "DIR",
        "the Hugging Face folder of the model: config.json, safetensors, and the files of its tokenizer. "
        "M2M-100, NLLB-200, NLLB-MoE and OPUS-MT (Marian) can be read",
    )
    flags.text("workdir", "DIR", "the run folder to make")
    flags.words(
        "languages",
        "CODE ...",
        "BCP 47 tags of the languages to translate between; if not given, all languages of the model",
    )


def _import(values: FlagValues) -> None:
    source = existing_folder(values, "from", "save_pretrained of transformers", True)
    workdir = paths.local_path("workdir", values.workdir)
    from gshard_nmt.import_model import import_model

    import_model(source, workdir, values.languages)


IMPORT = Command(
    "gshard-import",
    "makes a run folder of a model of Hugging Face, which can be decoded and evaluated.",
    "gshard-import --from nllb-200-distilled-600M --workdir runs/nllb",
    ("from", "workdir"),
    _define_import,
    _import,
)
"""The command gshard-import."""
