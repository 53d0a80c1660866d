"""The programs: their flags, and the function that each calls.

Whatever takes long to import is imported inside that function, after the flags have been checked.
"""

import contextlib
import functools
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

from absl import flags

from gshard_nmt.cli.runner import EXIT_USER_ERROR, Program, run
from gshard_nmt.errors import UserError
from gshard_nmt.suggest import did_you_mean

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config
    from gshard_nmt.spmd.processes import Processes


_HELP_WORDS = ("--help", "-help", "-h", "--helpfull", "help")


def data_program(arguments: Sequence[str] | None = None) -> int:
    """gshard-data: makes corpora and prepares them; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in DATA_VERBS:
        return run(DATA_VERBS[words[0]], words[1:])
    if words and words[0] == "--version":
        return run(HARVEST, words[:1])
    if words and words[0] in _HELP_WORDS:
        print("gshard-data: from text to what gshard-train reads. Verbs:\n")
        for verb, program in DATA_VERBS.items():
            print(f"  gshard-data {verb:<9} {program.about}")
        print("\nEach has its own --help: gshard-data harvest --help")
        return 0
    if not words:
        message = f"which verb? There are: {', '.join(DATA_VERBS)}. See gshard-data --help."
    else:
        message = (
            f"there is no verb {words[0]!r}{did_you_mean(words[0], DATA_VERBS)} There are: "
            f"{', '.join(DATA_VERBS)}, which come first. See gshard-data --help."
        )
    print(f"gshard-data: {message}", file=sys.stderr)
    return EXIT_USER_ERROR


def main(arguments: Sequence[str] | None = None) -> int:
    """python -m gshard_nmt: runs the program that the first word names; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    programs: dict[str, Callable[[list[str]], int]] = {
        "data": data_program,
        "train": train_program,
        "decode": decode_program,
        "eval": eval_program,
        "inspect": inspect_program,
        **{verb: functools.partial(run, command) for verb, command in DATA_VERBS.items()},
    }
    if words and words[0] in programs:
        return programs[words[0]](words[1:])
    listed = ", ".join(programs)
    if words and words[0] in _HELP_WORDS:
        print(f"python -m gshard_nmt PROGRAM [--flag value ...]. Programs: {listed}.")
        print("Each has its own --help: python -m gshard_nmt train --help")
        return 0
    if words and words[0] == "--version":
        return run(TRAIN, words[:1])
    hint = did_you_mean(words[0], programs) if words else ""
    given = f"there is no program {words[0]!r}{hint}" if words else "which program?"
    print(f"gshard_nmt: {given} The programs are: {listed}.", file=sys.stderr)
    return EXIT_USER_ERROR


def train_program(arguments: Sequence[str] | None = None) -> int:
    """gshard-train: trains or resumes; returns the exit code."""
    return run(TRAIN, sys.argv[1:] if arguments is None else arguments)


def decode_program(arguments: Sequence[str] | None = None) -> int:
    """gshard-decode: translates text; returns the exit code."""
    return run(DECODE, sys.argv[1:] if arguments is None else arguments)


def eval_program(arguments: Sequence[str] | None = None) -> int:
    """gshard-eval: scores a run on a test set and writes the report; returns the exit code."""
    return run(EVAL, sys.argv[1:] if arguments is None else arguments)


def inspect_program(arguments: Sequence[str] | None = None) -> int:
    """gshard-inspect: says what a config will cost on a topology; returns the exit code."""
    return run(INSPECT, sys.argv[1:] if arguments is None else arguments)


def _define_config(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "config", None, "a gin file, or the name of one in configs/experiments", flag_values=values
    )
    flags.DEFINE_multi_string(
        "gin",
        [],
        "a setting over the config's, such as 'Train.steps = 100'; repeats",
        flag_values=values,
    )


def _config(values: flags.FlagValues) -> "Config":
    from gshard_nmt.settings.gin_reader import load_config

    return load_config(values.config, values.gin)


def _folder(values: flags.FlagValues, name: str, made_by: str) -> Path:
    """The folder that a flag names.

    Raises:
      UserError: there is none.
    """
    path = Path(str(values[name].value))
    if not path.is_dir():
        raise UserError(f"--{name} {path}: there is no such folder; make it with {made_by}.")
    return path


def _define_harvest(values: flags.FlagValues) -> None:
    flags.DEFINE_string("out", None, "the corpus folder to make", flag_values=values)
    flags.DEFINE_multi_string(
        "root",
        [],
        "a folder to search beside the system's locale folders and Python's packages; repeats",
        flag_values=values,
    )


def _harvest(values: flags.FlagValues) -> None:
    from gshard_nmt.harvest import harvest

    harvest(Path(values.out), [Path(root) for root in values.root])


def _define_prepare(values: flags.FlagValues) -> None:
    _define_config(values)
    flags.DEFINE_string("corpus", None, "the corpus folder to read", flag_values=values)
    flags.DEFINE_string("out", None, "the folder of prepared data to make", flag_values=values)


def _prepare(values: flags.FlagValues) -> None:
    config = _config(values)
    corpus = _folder(values, "corpus", "gshard-data harvest, or put your own text there")
    from gshard_nmt.prepare import prepare

    prepare(config.data, corpus, Path(values.out))


def _define_train(values: flags.FlagValues) -> None:
    _define_config(values)
    flags.DEFINE_string(
        "data", None, "the folder that gshard-data prepare made", flag_values=values
    )
    flags.DEFINE_string(
        "workdir", None, "the run folder; a run that is there goes on", flag_values=values
    )
    flags.DEFINE_string(
        "baselines_of",
        None,
        "train instead one bilingual model for each language of this run, in "
        "--workdir/LANGUAGE, each on as many tokens of its language as the run saw",
        flag_values=values,
    )
    flags.DEFINE_string(
        "coordinator",
        "",
        "host:port of process 0 of a run of several processes; under Slurm, Open MPI and on TPU pod "
        "slices this and the next two are found by themselves",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "num_processes", 1, "processes of the run", lower_bound=1, flag_values=values
    )
    flags.DEFINE_integer(
        "process_id", 0, "number of this process, from 0", lower_bound=0, flag_values=values
    )
    flags.DEFINE_integer(
        "peer_timeout",
        60,
        "seconds after which a process that does not come, or does not answer, is lost",
        lower_bound=1,
        flag_values=values,
    )


def _train(values: flags.FlagValues) -> None:
    config = _config(values)
    data = _folder(values, "data", "gshard-data prepare")
    of_workdir = _folder(values, "baselines_of", "gshard-train") if values.baselines_of else None
    processes = _processes(values)
    if processes.count > 1:
        from gshard_nmt.run import supervisor

        processes.local_devices(config.mesh.num_devices)
        if not supervisor.is_watched():
            sys.exit(supervisor.supervise(processes, _again(values, processes)))
    from gshard_nmt.train import train, train_baselines

    with processes.lost_peers_end_it():
        if of_workdir:
            train_baselines(config, data, of_workdir, Path(values.workdir), processes)
        else:
            train(config, data, Path(values.workdir), processes)


def _processes(values: flags.FlagValues) -> "Processes":
    """The processes that the flags name, or else the cluster's environment."""
    from gshard_nmt.spmd.processes import Processes, detect

    if not values.coordinator and values.num_processes == 1:
        return detect(values.peer_timeout)
    return Processes(
        values.coordinator, values.num_processes, values.process_id, values.peer_timeout
    )


def _again(values: flags.FlagValues, processes: "Processes") -> list[str]:
    """The command line that runs this program with the same flags, as a process of its own."""
    given = {"config": [values.config], "gin": values.gin, "data": [values.data]}
    given |= {"workdir": [values.workdir], "baselines_of": filter(None, [values.baselines_of])}
    given |= {"coordinator": [processes.coordinator], "num_processes": [processes.count]}
    given |= {"process_id": [processes.index], "peer_timeout": [processes.peer_timeout]}
    arguments = [f"--{name}={value}" for name, several in given.items() for value in several]
    return [sys.executable, "-m", "gshard_nmt", "train", *arguments]


def _define_decode(values: flags.FlagValues) -> None:
    flags.DEFINE_string("workdir", None, "the run folder of the model", flag_values=values)
    flags.DEFINE_string(
        "lang",
        "",
        "the language of the input; not needed where the model knows but one",
        flag_values=values,
    )
    flags.DEFINE_string(
        "target",
        "",
        "the language to translate to; not needed where there is but one",
        flag_values=values,
    )
    flags.DEFINE_string("input", None, "one sentence a line, instead of stdin", flag_values=values)
    flags.DEFINE_string("output", None, "the translations, instead of stdout", flag_values=values)
    flags.DEFINE_integer(
        "beam",
        None,
        "hypotheses that the search keeps, instead of the run's, which is 4 unless its config says "
        "otherwise",
        lower_bound=1,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "nbest", 1, "translations of each line, best first", lower_bound=1, flag_values=values
    )
    flags.DEFINE_boolean("scores", False, "write line number, score and text", flag_values=values)
    flags.DEFINE_enum(
        "length_norm",
        None,
        ["gnmt", "lingvo", "none"],
        "how scores allow for length, instead of the run's: gnmt, lingvo or none",
        flag_values=values,
    )
    flags.DEFINE_float(
        "alpha", None, "exponent of the length norm, instead of the run's", flag_values=values
    )


def _decode(values: flags.FlagValues) -> None:
    workdir = _folder(values, "workdir", "gshard-train")
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.settings.values import read_run_config

    run = RunFolder(workdir)
    search = {"beam": values.beam, "length_norm": values.length_norm, "alpha": values.alpha}
    changes = {name: value for name, value in search.items() if value is not None}
    config = read_run_config(run.config).replace(decode=changes)
    if values.input and not Path(values.input).exists():
        raise UserError(f"--input {values.input}: there is no such file.")
    # Opening an output file empties it, so all flags are checked before.
    source, target = run.direction(values.lang, values.target)
    if values.nbest > config.decode.beam:
        raise UserError(
            f"--nbest is {values.nbest} and the beam {config.decode.beam}; --nbest must be from 1 to "
            "the beam. Set a larger --beam."
        )
    from gshard_nmt.decode import decode

    with (
        _text(values.input, sys.stdin, "r") as lines,
        _text(values.output, sys.stdout, "w") as output,
    ):
        decode(config, run, lines, output, source, target, values.nbest, values.scores)


@contextlib.contextmanager
def _text(path: str | None, standard: TextIO, mode: Literal["r", "w"]) -> Iterator[TextIO]:
    """A UTF-8 text file, or a standard stream; only newlines end its lines, whatever the system."""
    if path:
        with open(path, mode, encoding="utf-8", newline="\n") as file:
            yield file
    else:
        if isinstance(standard, io.TextIOWrapper):
            standard.reconfigure(encoding="utf-8", errors="strict", newline="\n")
        yield standard
        if mode == "w":
            standard.flush()


def _define_eval(values: flags.FlagValues) -> None:
    flags.DEFINE_string("workdir", None, "the run folder of the model", flag_values=values)
    flags.DEFINE_string("corpus", None, "the corpus folder with the references", flag_values=values)
    flags.DEFINE_string("split", "test", "which split to translate and score", flag_values=values)
    flags.DEFINE_string(
        "baselines",
        None,
        "bilingual runs, as a folder of run folders named by language, or their "
        'BLEU, as a JSON file such as {"fr": 30.1}',
        flag_values=values,
    )
    flags.DEFINE_string("report", None, "the folder of the report to make", flag_values=values)
    flags.DEFINE_integer(
        "sentences",
        0,
        "sentences of each language, the first of the split; 0 means all",
        lower_bound=0,
        flag_values=values,
    )


def _eval(values: flags.FlagValues) -> None:
    workdir = _folder(values, "workdir", "gshard-train")
    corpus = _folder(values, "corpus", "gshard-data harvest, or put your own text there")
    baselines = Path(values.baselines) if values.baselines else None
    if baselines and not baselines.exists():
        raise UserError(f"--baselines {baselines}: there is no such folder or file.")
    from gshard_nmt.decoding.translator import translate_run
    from gshard_nmt.evaluate import evaluate

    report = Path(values.report)
    evaluate(workdir, corpus, values.split, report, translate_run, baselines, values.sentences)


def _define_inspect(values: flags.FlagValues) -> None:
    _define_config(values)
    flags.DEFINE_boolean(
        "parameters", False, "print the parameter table and compile nothing", flag_values=values
    )
    flags.DEFINE_multi_string(
        "topology",
        [],
        "a machine to compile for, such as v3:32x32, v4:4x4x4, v5e:16x16, v5p:8x8x8, v6e:16x16 or "
        "cpu:8; repeats, and then shows what grows; the config's own mesh on CPU devices where it is "
        "not given",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "scale_with_devices",
        False,
        "let experts, groups and rows follow the number of devices, from the config's mesh on",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "decoding", False, "inspect decoding instead of the training step", flag_values=values
    )
    flags.DEFINE_boolean(
        "equivalence",
        False,
        "run the config, at reduced size, on one CPU device and on a mesh of several, and compare loss "
        "and gradients",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "devices",
        0,
        "CPU devices of the mesh for --equivalence; 0 takes the config's, at most 8",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "doctor",
        False,
        "list everything that is wrong with config, mesh, data, memory, disk and versions, at once",
        flag_values=values,
    )
    flags.DEFINE_string(
        "data", None, "for --doctor: the prepared data of the run", flag_values=values
    )
    flags.DEFINE_string("workdir", None, "for --doctor: the run folder to be", flag_values=values)
    flags.DEFINE_float(
        "tokens", 1e12, "the budget that a run's cost is given for", 1.0, flag_values=values
    )
    flags.DEFINE_string("json", None, "a file for the figures", flag_values=values)
    flags.DEFINE_string("html", None, "a file for the report with figures", flag_values=values)


_INSPECTIONS = {
    "": ("topology", "scale_with_devices", "decoding", "tokens", "json", "html"),
    "parameters": (),
    "equivalence": ("devices",),
    "doctor": ("topology", "data", "workdir"),
}
"""The flags that go with each thing that gshard-inspect does; "" is compiling and reporting."""


def _check_flags_belong_together(values: flags.FlagValues) -> None:
    """Raises UserError where a flag that is given would not be used."""

    def is_given(name: str) -> bool:
        return bool(values[name].value) and not values[name].using_default_value

    chosen = [name for name in _INSPECTIONS if name and is_given(name)]
    if len(chosen) > 1:
        listed = " and ".join(f"--{name}" for name in chosen)
        raise UserError(f"{listed} are different inspections; give one of them at a time.")
    does = chosen[0] if chosen else ""
    optional = dict.fromkeys(name for names in _INSPECTIONS.values() for name in names)
    unused = [f"--{name}" for name in optional if is_given(name) and name not in _INSPECTIONS[does]]
    if not unused:
        return
    belong = []
    for name, takes in _INSPECTIONS.items():
        listed = ", ".join(f"--{each}" for each in takes)
        belong.append(f"  {f'--{name}' if name else 'the report':<14} takes {listed or 'no more'}")
    verb = "is" if len(unused) == 1 else "are"
    raise UserError(
        f"{', '.join(unused)} {verb} not used {f'with --{does}' if does else 'for the report'}. "
        "Beside --config and --gin:\n" + "\n".join(belong)
    )


def _inspect(values: flags.FlagValues) -> None:
    _check_flags_belong_together(values)
    if values.doctor:
        from gshard_nmt.checks.doctor import DoctorRequest, show_doctor

        data, workdir = (Path(name) if name else None for name in (values.data, values.workdir))
        show_doctor(DoctorRequest(values.config, values.gin, data, workdir, values.topology))
        return
    config = _config(values)
    from gshard_nmt import inspect

    if values.parameters:
        inspect.show_parameters(config)
        return
    if values.equivalence:
        from gshard_nmt.checks.equivalence import show_equivalence

        show_equivalence(config, Path(values.config).stem, values.devices)
        return
    topologies = values.topology or [inspect.default_topology(config.mesh)]
    request = inspect.Request(
        config,
        Path(values.config).stem,
        topologies,
        values.scale_with_devices,
        values.decoding,
        values.tokens,
    )
    files = {name: Path(str(values[name].value)) for name in ("json", "html") if values[name].value}
    for name, file in files.items():
        if not file.absolute().parent.is_dir():
            raise UserError(f"--{name} {file}: there is no folder {file.parent} to write it to.")
    if len({file.resolve() for file in files.values()}) < len(files):
        raise UserError(f"--json and --html are both {values.json}; give each a file of its own.")
    inspect.inspect(request, files.get("json"), files.get("html"))


HARVEST = Program(
    "gshard-data harvest",
    "makes a parallel corpus of all languages to English from the message catalogues (.mo, .po) of "
    "the software on this machine.",
    "gshard-data harvest --out corpus",
    ("out",),
    _define_harvest,
    _harvest,
)
PREPARE = Program(
    "gshard-data prepare",
    "makes vocabularies and tokenised shards from a corpus folder.",
    "gshard-data prepare --config demo --corpus corpus --out data",
    ("config", "corpus", "out"),
    _define_prepare,
    _prepare,
)
DATA_VERBS = {"harvest": HARVEST, "prepare": PREPARE}
TRAIN = Program(
    "gshard-train",
    "trains a model, or goes on where the run in --workdir stopped.",
    "gshard-train --config demo --data data --workdir runs/demo",
    ("config", "data", "workdir"),
    _define_train,
    _train,
)
DECODE = Program(
    "gshard-decode",
    "translates lines of text with a trained model, in their order.",
    'echo "Fichier introuvable" | gshard-decode --workdir runs/demo --lang fr',
    ("workdir",),
    _define_decode,
    _decode,
)
EVAL = Program(
    "gshard-eval",
    "translates a test set, scores it by language against baselines and writes the report; what is "
    "translated already is not translated again.",
    "gshard-eval --workdir runs/demo --corpus corpus --report runs/demo/report",
    ("workdir", "corpus", "report"),
    _define_eval,
    _eval,
)
INSPECT = Program(
    "gshard-inspect",
    "says what a config will cost on a machine that need not be there: memory, communication and time "
    "of the real step, compiled by the real compiler.",
    "gshard-inspect --config demo --topology v3:2x2",
    ("config",),
    _define_inspect,
    _inspect,
)
