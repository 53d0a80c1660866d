"""gshard-export, gshard-import and gshard-serve: their flags, and the calls of the programs."""

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from gshard_nmt import paths
from gshard_nmt.cli.decode_command import SAMPLING, check_nbest, define_protection, read_protection
from gshard_nmt.cli.flags import (
    Command,
    Flags,
    define_changes,
    define_checkpoint,
    define_run,
    define_trust,
    existing_folder,
)
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.settings.values import Changes


def _define_export(flags: Flags) -> None:
    # fmt: off
    define_run(flags)
    flags.text("out", "DIR", "the folder to make")
    flags.choice("format", "NAME",
        "savedmodel: a TensorFlow SavedModel, from text to text. huggingface: a folder for transformers, "
        "in the layout of M2M-100, or of NLLB-MoE with experts, or the own one of an imported model. "
        "ctranslate2: a folder for CTranslate2; dense models only. native: a smaller run folder",
        ["savedmodel", "huggingface", "ctranslate2", "native"])
    flags.words("languages", "CODE ...",
        "only with --format native: the languages that the smaller model translates; one that is in all "
        "directions need not be named")
    flags.text("corpus", "DIR",
        "only with --format native: a corpus of these languages, which has all pieces that stay", "")
    define_checkpoint(flags)
    flags.texts("gin", "'NAME = VALUE'",
        "a setting of Decode for the beam search of a SavedModel, such as 'Decode.beam = 2'; may be "
        "given several times")


def _export(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    out = paths.local_path("out", values.out)
    is_native = values.format == "native"
    if values.gin and values.format != "savedmodel":
        raise UserError(
            f"--gin has no effect with --format {values.format}, which has no search. Leave it out, and "
            "give the settings to the program that translates."
        )
    if not is_native and (values.languages or values.corpus):
        raise UserError(
            "--languages and --corpus make a smaller run folder, and --format is "
            f"{values.format}. Give --format native, and then export that folder in the other format."
        )
    if is_native:
        if not any(values.languages) or not values.corpus:
            raise UserError(
                "--format native makes a smaller model and needs --languages and --corpus. Name the "
                "languages, and give a corpus folder with their text, as gshard-data prepare takes it."
            )
        corpus = existing_folder(values, "corpus", "gshard-data harvest")
        from gshard_nmt.export import export_smaller

        export_smaller(workdir, out, values.languages, corpus, values.checkpoint)
        return
    changes = _beam_search(values.gin, ("Decode",))
    from gshard_nmt.export import export

    export(workdir, out, changes, values.checkpoint, values.format)


def _beam_search(statements: Sequence[str], classes: Sequence[str]) -> "Changes":
    """Reads --gin; UserError for settings of sampling, which these programs do not have."""
    from gshard_nmt.settings.gin_reader import read_changes

    changes = read_changes(statements, classes)
    for _, name in changes.settings:
        if name in ("method", *SAMPLING):
            raise UserError(
                f"--gin: Decode.{name} has no effect, for this is beam search. Leave it out."
            )
    return changes


EXPORT = Command("gshard-export",
    "writes a trained model as files that other software loads.",
    "gshard-export --workdir runs/demo --out exported --format savedmodel",
    ("workdir", "out", "format"), _define_export, _export)  # fmt: skip


def _define_import(flags: Flags) -> None:
    # fmt: off
    flags.text("from", "DIR",
        "the Hugging Face folder of a model of M2M-100, NLLB-200, NLLB-MoE or OPUS-MT (Marian): "
        "config.json, safetensors, and the files of its tokenizer")
    flags.text("workdir", "DIR", "the run folder to make")
    flags.words("languages", "CODE ...",
        "BCP 47 tags of the languages to translate between; if not given, all of the model")
    flags.switch("marian_positions",
        "for OPUS-MT: positions as in Marian, with which it was trained; those of transformers differ")


def _import(values: FlagValues) -> None:
    source = existing_folder(values, "from", "save_pretrained of transformers", True)
    workdir = paths.local_path("workdir", values.workdir)
    from gshard_nmt.import_model import import_model

    import_model(source, workdir, values.languages, values.marian_positions)


IMPORT = Command("gshard-import",
    "makes a run folder of a model of Hugging Face, which can be decoded, evaluated and trained further.",
    "gshard-import --from nllb-200-distilled-600M --workdir runs/nllb",
    ("from", "workdir"), _define_import, _import)  # fmt: skip

_ORIGIN = re.compile(r"\*|(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://[^/?#\s@A-Z]+")


def _define_serve(flags: Flags) -> None:
    # fmt: off
    define_run(flags)
    flags.text("host", "ADDRESS",
        "the address to listen on; another one than the default may let other machines use the server",
        default="127.0.0.1")
    define_checkpoint(flags)
    flags.integer("port", "P",
        "the port to listen on; 0 takes any that is free", 5000, minimum=0, maximum=65535)
    flags.integer("beam", "K", "beam size; if not given, that of the run's config", None, minimum=1)
    flags.integer("nbest", "N",
        "the most translations of a text that a client may ask for; at most --beam", 1, minimum=1)
    define_protection(flags)
    flags.integer("max_characters", "N",
        "the most characters of all texts of a request together", 20_000, minimum=1)
    flags.number("timeout", "SECONDS",
        "the longest time until a request is answered; then it gets status 504", 60.0, minimum=0.1)
    flags.texts("cors", "ORIGIN",
        "an origin, such as https://example.org, whose pages may use the server, or * for all; may be "
        "given several times")
    define_changes(flags)
    define_trust(flags)


def _serve(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    for origin in values.cors:
        if not _ORIGIN.fullmatch(origin):
            raise UserError(
                f"--cors is {origin!r}; it must be * or a scheme and a host, such as "
                "https://example.org or http://localhost:8000, as browsers send it: in small letters, "
                "without a path, and without the ports 80 of http and 443 of https."
            )
    from gshard_nmt.run.checkpoint.weights import Chosen
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.values import read_run_config
    from gshard_nmt.spmd.processes import ALONE

    Chosen.parse(values.checkpoint)
    changes = _beam_search(values.gin, ("Mesh", "Decode"))
    run = RunFolder(workdir, values.trust_programs)
    search = {"beam": values.beam} if values.beam else {}
    config = changes.apply(read_run_config(run.config))
    config = config.replace(decode={**search, "method": "beam"})
    check_nbest(values.nbest, config.decode)
    protection = read_protection(values, config, run, ALONE)
    from gshard_nmt.serve import Server, listen, serve
    from gshard_nmt.serving.requests import Limits

    # Loading the model takes long, so we check the address before that.
    address = (values.host, values.port)
    listen(*address).close()
    if values.host not in ("localhost", "127.0.0.1", "::1"):
        sys.stderr.write(
            f"gshard-serve: --host {values.host}: every machine that can reach it may use this server, "
            "which has no passwords and no encryption\n"
        )
    from gshard_nmt.decoding.text_translator import load_translator

    fits = not changes.name_a_mesh
    model = (config, run, values.nbest, values.checkpoint)
    translator = load_translator(*model, fits=fits, protection=protection)
    translator.rate(run, config.decode)
    sys.stderr.write("gshard-serve: compiling the programs of all batch shapes\n")
    translator.of_ids.warm_up()
    limits = Limits(values.max_characters, seconds=values.timeout)
    server = Server(
        translator, run.directions, translator.of_ids.rows, address, limits, origins=values.cors
    )
    serve(server, f"{translator.origin}, {len(run.directions)} directions")


SERVE = Command("gshard-serve",
    "translates for HTTP clients: the interface of LibreTranslate, on this machine only unless --host "
    "says otherwise.",
    "gshard-serve --workdir runs/demo", ("workdir",), _define_serve, _serve)  # fmt: skip
