"""Random cases of wrong input: settings, flags, paths, and damaged files."""

import contextlib
import dataclasses
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from gshard_nmt.cli import commands
from gshard_nmt.settings.gin_reader import load_config

VALUES = (
    *("0", "1", "-1", "2", "3", "7", "64", "2147483648", "-9223372036854775809", "10**9"),
    *("0.0", "1e-320", "1e400", "-0.5", "float('nan')", "1.5", "True", "None", "''", "'a'"),
    *("'relu'", "'\\u0000'", "'é\\u202e'", "()", "(1,)", "(0,)", "(2, 2)", "('x',)", "('x', 'y')"),
    *("('x', 'x')", "[]", "{}", "{'B': 'x'}", "{'B': 'z'}", "{1: 2}", "{'*/gate': ['x']}", "((),)"),
    *("@Model()", "@nothing", "%EXPERTS", "%NOTHING", "%gin.REQUIRED", "", "(", "'", "1 2", "="),
    *("{'E': None, 'G': ('x', 'x')}", "'" + "a" * 5000 + "'", "[" * 300 + "]" * 300),
)

PROGRAMS = (
    *("train", "decode", "eval", "inspect", "serve", "export"),
    *("data harvest", "data prepare", "data show", "data plan", "data check"),
)
LONG_FLAGS = ("topology", "equivalence", "coordinator", "root", "num_processes", "papers")
"""They would compile, read this whole machine, or wait for other processes."""
LINES = (
    "data harvest --root={folder} --out={new}",
    "data prepare --config={config} --corpus={corpus} --out={new}",
    "data show --config={config} --data={data}",
    "data plan --config={config} --data={data} --out={new}.html",
    "data check --corpus={corpus} --report={new}.json",
    "train --config={config} --data={data} --workdir={new} | --baselines_of={text}",
    "decode --workdir={run} --input={text} --output={new} | --lang=fr",
    "eval --workdir={run} --corpus={corpus} --report={new} | --baselines={text}",
    "inspect --config={config} --json={new} --html={new}.html | --topology=v99:1",
    "inspect --config={config} --data={data} --workdir={new} | --doctor=true",
    "serve --workdir={run} | --port=0",
    "export --workdir={run} --out={new} | --format=savedmodel",
)
"""Good command lines. The path of a flag before the bar may lead to the wrong kind of place."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A program such as "data check", its arguments, and what has been done to its files."""

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
            (3, self.damaged_run),
            (2, self.checkpoints),
            (3, self.paths),
            (2, self.outputs),
            (2, self.damaged_corpus),
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
        program = self.rng.choice(PROGRAMS)
        nowhere = self.folder / "nowhere"
        (self.folder / "a file").write_text("text")
        values = ["", "0", "-1", "nan", "demo", "dmeo", "x" * 300, "é\n", str(nowhere / "new")]
        values += [str(self.folder / "a file"), "/dev/null", "cpu:2", "v9:1", "127.0.0.1:1"]
        words = []
        for name in self.rng.choices(_flag_names(program), k=self.rng.randint(0, 5)):
            if name in LONG_FLAGS:
                continue
            word = name if self.rng.random() < 0.9 else _damage_text(name, self.rng)
            words.append(f"--{word}={self.rng.choice(values)}" if self.rng.random() < 0.9 else word)
        if program == "data harvest":
            words.append(f"--root={self.folder}")
        if program == "inspect":
            words.append("--parameters")
        return Case(program, tuple(words))

    def damaged_data(self) -> Case:
        data = Path(shutil.copytree(self.data, self.folder / "data"))
        damage = self._damage_one(data, ("manifest.json",) * 3)
        settings = ["--config=" + str(self.run / "config.gin"), f"--data={data}"]
        if self.rng.random() < 0.3:
            return Case(self.rng.choice(["data show", "data plan"]), tuple(settings), damage)
        if self.rng.random() < 0.6:
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
        programs = Path(shutil.copytree(self.good / "programs", runs / "programs"))
        run = Path(shutil.copytree(self.run, runs / "run"))
        names = ("config.gin", "data.json", "budget.json", "metrics.jsonl", "source.model")
        trust = self.rng.random() < 0.3
        if trust and self.rng.random() < 0.5:
            damage = "programs/" + self._damage_one(programs, ())
        else:
            damage = self._damage_one(run, names)
        if self.rng.random() < 0.5:
            text = self.folder / "input"
            text.write_bytes(self.rng.choice([b"der\n", b"", b"\n\n", b"\xff\xfe\n", b"a\x00b"]))
            flags = (f"--workdir={run}", "--lang=fr", f"--input={text}")
            flags += ("--trust_programs",) if trust else ()
            return Case("decode", (*flags, f"--output={self.folder / 'output'}"), damage)
        config = f"--config={self.run / 'config.gin'}"
        # With more steps than before, the run goes on and removes old checkpoints.
        more = ("--gin=Train.steps = 8",) if self.rng.random() < 0.5 else ()
        return Case("train", (config, f"--data={self.data}", f"--workdir={run}", *more), damage)

    def checkpoints(self) -> Case:
        """A verb of gshard-checkpoint with odd values, mostly on a run of which a file is damaged."""
        run = Path(shutil.copytree(self.run, self.folder / "run"))
        sound, files = self.rng.random() < 0.3, ("data.json", "config.gin")
        damage = "" if sound else self._damage_one(run, (*files, "checkpoints/6/manifest.json"))
        steps = self.rng.choice(["4,6", "6,4", "6", "6,6", "4,7", "", "a,b", "-1,6", "9" * 30])
        number = self.rng.choice(["2", "3", "1", "0", "6", "9" * 30, "x", ""])
        new = self.rng.choice([self.folder / "new", run, self.run, self.folder / "no" / "new"])
        verb, *words = self.rng.choice(
            [
                ("list",),
                ("verify",),
                ("verify", f"--step={number}"),
                ("diff", f"--steps={steps}"),
                ("diff", f"--other={self.run}"),
                ("average", f"--steps={steps}", f"--out={new}"),
                ("average", f"--last={number}", f"--out={new}"),
            ]
        )
        if verb != "average" and self.rng.random() < 0.5:
            words.append("--json")
        return Case("checkpoint", (verb, f"--workdir={run}", *words), damage)

    def paths(self) -> Case:
        """A good command line in which one path leads to the wrong kind of place, or to nothing."""
        self._make_places()
        places = {name: self.folder / name for name in ("text", "corpus", "new")}
        places |= {"folder": self.folder, "run": self.run, "data": self.data}
        places["config"] = self.run / "config.gin"
        line = self.rng.choice(LINES).format_map(places)
        text = str(self.folder / "text")
        impossible = [text, f"{text}/below", "/proc/x", "/dev/null/x", "/dev/null"]
        impossible += [str(self.folder / name) for name in ("circle", "dangling", "x" * 300)]
        possible = [".", *(str(self.folder / name) for name in ("a folder", "gone", "\udcff"))]
        # A harvest that succeeds reads this whole machine, and an export takes long.
        succeeds = not line.startswith(("data harvest", "export"))
        program, *words = line.replace(" |", "").split(" --")
        number = self.rng.randrange(line.partition("|")[0].count(" --"))
        value = self.rng.choice(impossible + (possible if succeeds else []))
        words[number] = f"{words[number].partition('=')[0]}={value}"
        return Case(program, tuple(f"--{word}" for word in words))

    def outputs(self) -> Case:
        """An output that is the input, a file of the run, or a folder with files of the user."""
        self._make_places()
        text, config = self.folder / "text", self.folder / "my.gin"
        shutil.copyfile(self.run / "config.gin", config)
        run = Path(shutil.copytree(self.run, self.folder / "run"))
        data = Path(shutil.copytree(self.data, self.folder / "data"))
        (data / "my notes").write_text("years of work")
        (self.folder / "link").symlink_to("text")
        (self.folder / "hard").hardlink_to(text)
        decode = ("decode", f"--workdir={run}", "--lang=fr", f"--input={text}")
        files = sorted(path for path in run.rglob("*") if path.is_file())
        prepare = ("data prepare", f"--config={config}", f"--corpus={self.folder / 'corpus'}")
        program, *words = self.rng.choice(
            [
                (*decode, f"--output={self.rng.choice([text, 'link', 'hard', './text'])}"),
                (*decode, f"--output={self.rng.choice(files)}"),
                ("inspect", f"--config={config}", "--topology=v99:1", f"--json={config}"),
                (*prepare, f"--out={data}", "--gin=Data.source_length = 15"),
                (*prepare, f"--out={self.folder / 'corpus'}"),
                (*prepare, f"--out={self.folder}"),
                ("data harvest", f"--root={self.folder}", f"--out={self.folder / 'corpus'}"),
                ("train", f"--config={config}", f"--data={data}", f"--workdir={data}"),
                ("train", f"--config={config}", f"--data={data}", f"--workdir={self.folder}"),
            ]
        )
        return Case(program, tuple(words))

    def damaged_corpus(self) -> Case:
        """Text of which a file is cut, flipped, gone, or compressed badly."""
        self._make_places()
        damage = self._damage_one(self.folder / "corpus", ())
        words = (f"--config={self.run / 'config.gin'}", f"--corpus={self.folder / 'corpus'}")
        if self.rng.random() < 0.3:
            return Case("data check", (*words, f"--report={self.folder / 'new.html'}"), damage)
        if self.rng.random() < 0.6:
            return Case("data prepare", (*words, f"--out={self.folder / 'new'}"), damage)
        words = (f"--workdir={self.run}", f"--corpus={self.folder / 'corpus'}", "--split=none")
        return Case("eval", (*words, f"--report={self.folder / 'new'}"), damage)

    def _make_places(self) -> None:
        """Makes a copy of the corpus, a file, a folder, and links that lead nowhere."""
        shutil.copytree(self.good / "corpus", self.folder / "corpus")
        (self.folder / "text").write_text("un\n")
        (self.folder / "a folder").mkdir()
        (self.folder / "circle").symlink_to("circle")
        (self.folder / "dangling").symlink_to("nowhere")

    def _damage_one(self, folder: Path, favorites: tuple[str, ...]) -> str:
        """Damages one file of a folder, often a favorite one."""
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        named = [folder / name for name in favorites if (folder / name).exists()]
        file = (
            self.rng.choice(named) if named and self.rng.random() < 0.7 else self.rng.choice(files)
        )
        name, content = file.relative_to(folder), file.read_bytes()
        way = self.rng.choices(["gone", "folder", "link", "other", "content"], [8, 6, 4, 8, 74])[0]
        if way == "content":
            return f"{name}: " + _damage_file(file, content, self.rng)
        file.unlink()
        if way == "folder":
            file.mkdir()
        elif way == "link":
            file.symlink_to("nowhere")
        elif way == "other":
            alike = [path for path in files if path.suffix == file.suffix and path != file]
            other = self.rng.choice(alike or [self.data / "manifest.json"])
            file.write_bytes(other.read_bytes())
            return f"{name} has the content of {other.name} in {other.parent.name}"
        return f"{name} is {'missing' if way == 'gone' else f'a {way}'}"


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
        commands.main([*program.split(), "--help"])
    words = output.getvalue().replace(",", " ").split()
    return sorted({word[2:].split("=")[0] for word in words if word.startswith("--")} - {"help"})
