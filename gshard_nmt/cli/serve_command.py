"""gshard-serve: its flags, and the server that they describe."""

import re
import sys

from absl.flags import FlagValues

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

LARGEST_PORT = 65535
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s@]+")


def _define_serve(flags: Flags) -> None:
    # fmt: off
    define_run(flags)
    flags.text("host", "ADDRESS",
        "the address to listen on. Another one than the default may let other machines use the "
        "server, which has no passwords and no encryption", default="127.0.0.1")
    define_checkpoint(flags)
    flags.integer("port", "P", "the port to listen on; 0 takes any that is free", 5000, minimum=0)
    flags.integer("beam", "K",
        "beam size; if not given, Decode.beam of the run's config", None, minimum=1)
    flags.integer("nbest", "N",
        "the most translations of a text, best first, that a client may ask for with "
        "`alternatives`; at most --beam", 1, minimum=1)
    flags.integer("rows", "R",
        "lines of a batch; if not given, Decode.rows of the run's config. A batch takes as long if "
        "it is not full, so fewer rows answer a single short text sooner, and more rows serve more "
        "clients. On a CPU it is rounded up to a multiple of 16 for each device, if the beam is 4",
        None, minimum=1)
    flags.integer("queue", "N",
        "requests that may wait or be at work; one more gets status 429", 64, minimum=1)
    flags.integer("max_texts", "N", "the most texts in a request", 100, minimum=1)
    flags.integer("max_characters", "N",
        "the most characters of all texts of a request together", 20_000, minimum=1)
    flags.number("timeout", "SECONDS",
        "the longest time until a request is answered; then it gets status 504", 60.0, minimum=0.1)
    flags.texts("cors", "ORIGIN",
        "an origin, such as https://example.org, whose pages may use the server; may be given "
        "several times; * allows all. Requests of other pages are refused")
    define_changes(flags)
    define_trust(flags)
    # fmt: on


def _serve(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    if values.port > LARGEST_PORT:
        raise UserError(
            f"--port is {values.port}; it must be from 0 to {LARGEST_PORT}. Choose one of these."
        )
    for origin in values.cors:
        if not _ORIGIN.fullmatch(origin):
            raise UserError(
                f"--cors is {origin!r}; it must be * or a scheme and a host, such as "
                "https://example.org or http://localhost:8000. Give it without a path."
            )
    from gshard_nmt.run.checkpoint.weights import Chosen
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.changes import read_changes
    from gshard_nmt.settings.values import read_run_config

    Chosen.parse(values.checkpoint)
    changes = read_changes(values.gin)
    run = RunFolder(workdir, values.trust_programs)
    search = {name: values[name].value for name in ("beam", "rows")}
    flags = {name: value for name, value in search.items() if value is not None}
    config = changes.apply(read_run_config(run.config))
    config = config.replace(decode={**flags, "method": "beam"})
    if values.nbest > config.decode.beam:
        raise UserError(
            f"--nbest is {values.nbest}; it must be from 1 to the beam size, {config.decode.beam}. Lower "
            "--nbest, or set a larger --beam."
        )
    directions = [(pair["source"], pair["target"]) for pair in run.data["pairs"]]
    from gshard_nmt.serve import Server, listen, serve, warn_of_open_address
    from gshard_nmt.serving.requests import Limits

    # Loading the model takes long, so we check the address before that.
    address = (values.host, values.port)
    listen(*address).close()
    if warning := warn_of_open_address(values.host):
        sys.stderr.write(f"gshard-serve: {warning}\n")
    from gshard_nmt.decoding.text_translator import load_translator

    fits = not changes.name_a_mesh
    translator = load_translator(config, run, values.nbest, values.checkpoint, fits=fits)
    sys.stderr.write("gshard-serve: compiling the programs of all batch shapes\n")
    translator.warm_up()
    limits = Limits(values.max_characters, values.max_texts, values.queue, values.timeout)
    server = Server(
        translator, directions, translator.of_ids.rows, address, limits, origins=values.cors
    )
    about = f"{translator.origin}, {len(directions)} directions"
    serve(server, about)


SERVE = Command(
    "gshard-serve",
    "translates for HTTP clients: the interface of LibreTranslate, on this machine only unless --host "
    "says otherwise.",
    "gshard-serve --workdir runs/demo",
    ("workdir",),
    _define_serve,
    _serve,
)
