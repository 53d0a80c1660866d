"""gshard-export and gshard-import: their flags, and the calls of the programs."""

from pathlib import Path

from absl.flags import FlagValues

from gshard_nmt import paths
from gshard_nmt.cli.decode_command import define_length_norm
from gshard_nmt.cli.flags import Command, Flags, define_checkpoint, define_run, existing_folder
from gshard_nmt.errors import UserError


def _define_export(flags: Flags) -> None:
    # fmt: off
    define_run(flags)
    flags.text("out", "DIR", "the folder to make. An earlier export in it is replaced at the end")
    flags.choice("format", "NAME",
        "savedmodel: a TensorFlow SavedModel, from text to text, which needs tensorflow and "
        "tensorflow-text to load. huggingface: a folder for transformers, in the layout of "
        "M2M-100, or of NLLB-MoE with experts; an imported model keeps its own. ctranslate2: a "
        "folder for CTranslate2, which translates fast on CPUs; dense models only. native: a run "
        "folder of a smaller model, for some --languages",
        ["savedmodel", "huggingface", "ctranslate2", "native"])
    flags.words("languages", "CODE ...",
        "only with --format native: the languages that the smaller model translates. If all "
        "directions have one target language, or one source language, it need not be named")
    flags.text("corpus", "DIR",
        "only with --format native: a corpus of these languages. Pieces that do not occur in it "
        "are cut", "")
    flags.number("keep_choices", "PART",
        "only with --format native: the part of the weight of the router's choices, on the dev "
        "text of the corpus, whose experts stay in each layer. 1 keeps all experts that are chosen",
        1.0, minimum=0)
    define_checkpoint(flags)
    flags.integer("beam", "K", "beam size; if not given, as in the run's config", None, minimum=1)
    define_length_norm(flags)
    flags.texts("gin", "'NAME = VALUE'",
        "a setting of Decode that replaces the run's, such as 'Decode.source_lengths = (16, 128)'; "
        "may be given several times. Only a SavedModel has a search, and it is always beam search")
    # fmt: on


def _export(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    out = paths.local_path("out", values.out)
    search = {name: values[name].value for name in ("beam", "length_norm", "alpha")}
    flags = {name: value for name, value in search.items() if value is not None}
    if values.format == "native":
        if given := [f"--{name}" for name in (*search, "gin") if values[name].present]:
            raise UserError(
                f"{', '.join(given)}: --format native keeps the settings of the run. Leave that out, and "
                "give it to the command that decodes with the smaller run."
            )
        _export_smaller(workdir, out, values)
        return
    if flags and values.format != "savedmodel":
        raise UserError(
            f"--{next(iter(flags))} has no effect with --format {values.format}, which has no search. "
            "Leave it out, and give it to the software that translates."
        )
    of_smaller = ("languages", "corpus", "keep_choices")
    if any(values[name].value != values[name].default for name in of_smaller):
        raise UserError(
            "--languages, --corpus and --keep_choices make a smaller run folder, and --format is "
            f"{values.format}. Give --format native, and then export that folder in the other format."
        )
    from gshard_nmt.export import export
    from gshard_nmt.settings.changes import read_changes

    changes = read_changes(values.gin, classes=["Decode"]).and_decode(flags, "a flag")
    export(workdir, out, changes, values.checkpoint, values.format)


def _export_smaller(workdir: Path, out: Path, values: FlagValues) -> None:
    languages = [code for word in values.languages for code in word.split(",") if code]
    if not languages or not values.corpus:
        raise UserError(
            "--format native makes a smaller model and needs --languages and --corpus. Name the "
            "languages, and give a corpus folder with their text, as gshard-data prepare takes it."
        )
    if values.keep_choices > 1:
        raise UserError(
            f"--keep_choices is {values.keep_choices:g}; it must be from 0 to 1. Choose 0.99, for "
            "instance."
        )
    corpus = existing_folder(values, "corpus", "gshard-data harvest")
    from gshard_nmt.export import export_smaller

    export_smaller(workdir, out, languages, corpus, values.keep_choices, values.checkpoint)


EXPORT = Command(
    "gshard-export",
    "writes a trained model as files that other software loads.",
    "gshard-export --workdir runs/demo --out exported --format savedmodel",
    ("workdir", "out", "format"),
    _define_export,
    _export,
)


def _define_import(flags: Flags) -> None:
    # fmt: off
    flags.text("from", "DIR",
        "the Hugging Face folder of the model: config.json, safetensors, and the files of its "
        "tokenizer. M2M-100, NLLB-200, NLLB-MoE and OPUS-MT (Marian) can be read")
    flags.text("workdir", "DIR", "the run folder to make")
    flags.words("languages", "CODE ...",
        "BCP 47 tags of the languages to translate between; if not given, all languages of the "
        "model")
    # fmt: on


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
