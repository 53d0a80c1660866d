"""Wrong input: settings, flags and damaged files must end with exit code 0 or 2, never with a traceback.

The programs run in this process, case after case. Another process watches it: if it dies, its case is a
defect, and the next case goes on in a new process. `--case N` repeats one case of a seed.
"""

import collections
import contextlib
import dataclasses
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.soak.campaign import Clock, Report, generator, last_lines, say

CASE_SECONDS = 120
MEMORY = 16 * 2**30
"""Bytes of address space for the programs; what asks for more gets a MemoryError, not the machine."""
GOOD_CODES = (0, 2)

VALUES = (
    *("0", "1", "-1", "2", "3", "7", "64", "2147483648", "-9223372036854775809", "10**9"),
    *("0.0", "1e-320", "1e400", "-0.5", "float('nan')", "1.5", "True", "None", "''", "'a'"),
    *("'relu'", "'\\u0000'", "'é\\u202e'", "()", "(1,)", "(0,)", "(2, 2)", "('x',)", "('x', 'y')"),
    *("('x', 'x')", "[]", "{}", "{'B': 'x'}", "{'B': 'z'}", "{1: 2}", "{'*/gate': ['x']}", "((),)"),
    *("@Model()", "@nothing", "%EXPERTS", "%NOTHING", "%gin.REQUIRED", "", "(", "'", "1 2", "="),
    *("{'E': None, 'G': ('x', 'x')}", "'" + "a" * 5000 + "'", "[" * 300 + "]" * 300),
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, its arguments, and what has been done to its files."""

    program: str
    arguments: tuple[str, ...]
    damage: str = ""

    def __str__(self) -> str:
        words = " ".join(word if len(word) < 200 else word[:200] + "..." for word in self.arguments)
        return f"{self.program} {words}" + (f" [{self.damage}]" if self.damage else "")


class Maker:
    """Makes random cases from good files."""

    def __init__(self, good: Path, folder: Path, rng: random.Random) -> None:
        self.good, self.folder, self.rng = good, folder, rng
        self.data, self.run = good / "data", good / "run"

    def case(self) -> Case:
        makers: list[tuple[int, Callable[[], Case]]] = [
            (6, self.settings),
            (4, self.damaged_config),
            (3, self.flags),
            (4, self.damaged_data),
            (2, self.damaged_run),
        ]
        weights, functions = zip(*makers, strict=True)
        return self.rng.choices(functions, weights)[0]()

    def look(self, *words: str) -> tuple[str, ...]:
        """Flags of gshard-inspect that allocate and compile nothing."""
        return (*words, self.rng.choice(["--parameters", "--doctor"]))

    def settings(self) -> Case:
        """One to three random settings."""
        names = _setting_names()
        words = []
        for _ in range(self.rng.randint(1, 3)):
            name = self.rng.choice(names)
            if self.rng.random() < 0.1:
                name = _damage_text(name, self.rng)
            words.append(f"--gin={name} = {self.rng.choice(VALUES)}")
        return Case("inspect", self.look("--config=demo", *words))

    def damaged_config(self) -> Case:
        text = (self.run / "config.gin").read_text()
        file = self.folder / "damaged.gin"
        damage = _damage_file(file, text.encode(), self.rng)
        return Case("inspect", self.look(f"--config={file}"), damage)

    def flags(self) -> Case:
        """Flags that exist, with values that may not."""
        program = self.rng.choice(["train", "decode", "eval", "inspect", "harvest", "prepare"])
        nowhere = self.folder / "nowhere"
        (self.folder / "a file").write_text("text")
        values = ["", "0", "-1", "nan", "demo", "dmeo", "x" * 300, "é\n", str(nowhere / "new")]
        values += [
            str(self.folder / "a file"),
            "/dev/null",
            "cpu:2",
            "cpu:0",
            "v9:1",
            "127.0.0.1:1",
        ]
        words = []
        for name in self.rng.choices(_flag_names(program), k=self.rng.randint(0, 5)):
            # Cases that would compile, read this whole machine, or wait for other processes.
            if name in (
                "topology",
                "equivalence",
                "coordinator",
                "root",
                "num_processes",
                "papers",
            ):
                continue
            word = name if self.rng.random() < 0.9 else _damage_text(name, self.rng)
            words.append(f"--{word}={self.rng.choice(values)}" if self.rng.random() < 0.9 else word)
        if program == "harvest":
            words.append(f"--root={self.folder}")
        if program == "inspect":
            words.append("--parameters")
        return Case(program, tuple(words))

    def damaged_data(self) -> Case:
        data = Path(shutil.copytree(self.data, self.folder / "data"))
        damage = self._damage_one(data, ("manifest.json",) * 3)
        settings = ["--config=" + str(self.run / "config.gin"), f"--data={data}"]
        if self.rng.random() < 0.7:
            return Case("inspect", (*settings, "--doctor"), damage)
        workdir = f"--workdir={self.folder / 'new' / 'run'}"
        share = self.folder / "new"
        share.mkdir()
        (share / "baselines.json").write_text("{}")
        shutil.copytree(self.good / "programs", share / "programs")
        few = ("--gin=Train.steps = 2", "--gin=Train.dev_every = 0")
        return Case("train", (*settings, workdir, *few), damage)

    def damaged_run(self) -> Case:
        runs = self.folder / "runs"
        runs.mkdir()
        (runs / "baselines.json").write_text("{}")
        shutil.copytree(self.good / "programs", runs / "programs")
        run = Path(shutil.copytree(self.run, runs / "run"))
        names = ("config.gin", "data.json", "budget.json", "metrics.jsonl", "source.model")
        damage = self._damage_one(run, names)
        if self.rng.random() < 0.5:
            text = self.folder / "input"
            text.write_bytes(self.rng.choice([b"der\n", b"", b"\n\n", b"\xff\xfe\n", b"a\x00b"]))
            flags = (f"--workdir={run}", "--lang=fr", f"--input={text}")
            return Case("decode", (*flags, f"--output={self.folder / 'output'}"), damage)
        config = f"--config={self.run / 'config.gin'}"
        return Case("train", (config, f"--data={self.data}", f"--workdir={run}"), damage)

    def _damage_one(self, folder: Path, favourites: tuple[str, ...]) -> str:
        """Damages one file of a folder, often a favourite one."""
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        named = [folder / name for name in favourites if (folder / name).exists()]
        file = (
            self.rng.choice(named) if named and self.rng.random() < 0.7 else self.rng.choice(files)
        )
        if self.rng.random() < 0.1:
            file.unlink()
            return f"{file.relative_to(folder)} is missing"
        return f"{file.relative_to(folder)}: " + _damage_file(file, file.read_bytes(), self.rng)


def _damage_file(file: Path, content: bytes, rng: random.Random) -> str:
    """Writes a damaged copy of a content; returns what was done."""
    if file.suffix == ".json" and rng.random() < 0.6:
        with contextlib.suppress(ValueError):
            value, damage = _damage_json(json.loads(content), rng)
            file.write_text(json.dumps(value))
            return damage
    place = rng.randrange(len(content) + 1)
    way = rng.choice(["cut", "byte", "line gone", "line twice", "inserted", "empty"])
    lines = content.splitlines(keepends=True) or [b""]
    number = rng.randrange(len(lines))
    if way == "cut":
        content = content[:place]
    elif way == "byte":
        content = content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]
    elif way == "line gone":
        content = b"".join(lines[:number] + lines[number + 1 :])
    elif way == "line twice":
        content = b"".join(lines[:number] + [lines[number]] * 2 + lines[number + 1 :])
    elif way == "inserted":
        junk = rng.choice(
            [b"\xff", b"\x00", b"(", b"'", b" = ", b"@", b"%", b"\n", b"include 'x'\n"]
        )
        content = content[:place] + junk + content[place:]
    else:
        content = b""
    file.write_bytes(content)
    return f"{way} at byte {place} or line {number + 1}"


def _damage_json(value, rng: random.Random, path: str = "") -> tuple[object, str]:
    """Returns a JSON value with one entry removed or replaced, and what was done."""
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value)) if isinstance(value, dict) else rng.randrange(len(value))
        changed = dict(value) if isinstance(value, dict) else list(value)
        if rng.random() < 0.2:
            del changed[key]
            return changed, f"without {path}/{key}"
        changed[key], damage = _damage_json(value[key], rng, f"{path}/{key}")
        return changed, damage
    other = rng.choice([None, -1, 0, 1.5, 10**30, "", "x", [], {}, True, ["x"], {"x": 1}])
    return other, f"{path} is {other!r}"


def _damage_text(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice(["", "x", ".", "/", " ", "é", "\n"]) + text[place + 1 :]


def _setting_names() -> list[str]:
    """Returns the names of all settings, and some macros."""
    from gshard_nmt.settings.gin_reader import load_config

    config = load_config("demo")
    parts = [getattr(config, field.name) for field in dataclasses.fields(config)]
    names = [
        f"{type(part).__name__}.{field.name}"
        for part in parts
        if dataclasses.is_dataclass(part)
        for field in dataclasses.fields(part)
    ]
    return [*names, "EXPERTS", "STEPS", "Model.nothing", "Nothing.at_all"]


def _flag_names(program: str) -> list[str]:
    """Returns the names of a program's flags, from its help."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        _call(Case(program, ("--help",)))
    words = output.getvalue().replace(",", " ").split()
    return sorted({word[2:].split("=")[0] for word in words if word.startswith("--")} - {"help"})


def _call(case: Case) -> int:
    from gshard_nmt.cli import commands

    return commands.main([case.program, *case.arguments])


class TooLong(BaseException):
    """A case takes longer than CASE_SECONDS."""


def defect_of(case: Case) -> tuple[str, str] | None:
    """Runs a case; returns (what kind of defect, what was said), or None if it ended as it should."""

    def too_long(*_: object) -> None:
        raise TooLong

    said = io.StringIO()
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(CASE_SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = _call(case)
    except TooLong:
        return f"no end after {CASE_SECONDS} s", said.getvalue()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a traceback of any kind is the defect
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "gshard_nmt" in f.filename] or list(frames)
        where = f"{Path(ours[-1].filename).name}:{ours[-1].name}"
        return f"{type(error).__name__} in {where}", f"{type(error).__name__}: {error}"[:500]
    finally:
        signal.alarm(0)
    if code not in GOOD_CODES:
        return f"exit code {code}", said.getvalue()
    if "Traceback" in said.getvalue():
        return "a traceback on stderr", said.getvalue()
    if code == 2 and not said.getvalue().strip():
        return "exit code 2 without a message", ""
    return None


def work(good: Path, seed: int, first: int, count: int, results: Path) -> None:
    """Runs cases and appends one JSON line to `results` before and after each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with results.open("a") as log:
        for number in range(first, first + count):
            folder = Path(tempfile.mkdtemp(dir=good, prefix="case-"))
            os.chdir(folder)
            case = Maker(good, folder, generator(seed, number)).case()
            print(json.dumps({"begins": number, "case": str(case)}), file=log, flush=True)
            defect = defect_of(case)
            print(json.dumps({"ended": number, "defect": defect}), file=log, flush=True)
            os.chdir(good)
            shutil.rmtree(folder, ignore_errors=True)


def campaign(clock: Clock, seed: int, only: int | None = None) -> Report:
    """Runs cases until the time is over or there are enough, in processes of a few hundred cases each."""
    from tests.soak import small_run

    good = small_run.prepared_folder()
    defects: dict[str, list[str]] = collections.defaultdict(list)
    cases = 0
    programs: collections.Counter[str] = collections.Counter()
    try:
        process = small_run.start(good, "run", good / "log", **{"Train.bleu_sentences": 0})
        if process.wait(300):
            return Report("the good run failed", [last_lines((good / "log").read_text())])
        number = only or 0
        while not clock.is_over():
            results = good / "results"
            results.write_text("")
            how_many = 1 if only is not None else int(min(300, clock.cases_left))
            before = cases
            ended, code = _watch(good, seed, number, how_many, results, clock)
            current = ""
            for line in map(json.loads, results.read_text().splitlines()):
                if "begins" in line:
                    current, number = line["case"], line["begins"] + 1
                    programs[current.split()[0]] += 1
                    cases += 1
                elif line["defect"]:
                    kind, said = line["defect"]
                    defects[kind].append(f"case {line['ended']}: {current}\n{last_lines(said, 6)}")
            if ended and code:
                defects[f"the process died with {code}"].append(f"case {number - 1}: {current}")
            clock.count(cases - before)
            say(
                f"wrong input: {cases} cases ({dict(programs)}), {len(defects)} kinds of defects; "
                f"{clock.left:.0f} s left"
            )
            if only is not None:
                break
    finally:
        small_run.remove(good)
    counts = ", ".join(f"{name} {count}" for name, count in programs.most_common())
    texts = [f"{kind}, {len(texts)} times, first {texts[0]}" for kind, texts in defects.items()]
    return Report(f"{cases} cases: {counts}", texts)


def _watch(
    good: Path, seed: int, first: int, count: int, results: Path, clock: Clock
) -> tuple[bool, int]:
    """Runs `work` in a process; returns whether it ended by itself, and its exit code."""
    code = (
        "import sys, pathlib; from tests.soak.wrong_input import work; a = sys.argv; "
        "work(pathlib.Path(a[1]), int(a[2]), int(a[3]), int(a[4]), pathlib.Path(a[5]))"
    )
    words = [str(good), str(seed), str(first), str(count), str(results)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        return True, process.wait(clock.left)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False, 0
