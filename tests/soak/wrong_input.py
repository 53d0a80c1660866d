"""Wrong input: settings, flags and damaged files must end with exit code 0 or 2, never with a traceback.

No file of the user may be lost or changed, except an output of a program that has succeeded.
The programs run in this process, case after case. Another process watches it: if it dies, its case is a
defect, and the next case goes on in a new process. `--case N` repeats one case of a seed.
"""

import collections
import contextlib
import gc
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from gshard_nmt.cli import commands
from tests.soak import small_run
from tests.soak.campaign import Clock, Report, generator, last_lines, say
from tests.soak.wrong_cases import Case, Maker

CASE_SECONDS = 120
MEMORY = 16 * 2**30
"""Bytes of address space for the programs; what asks for more gets a MemoryError, not the machine."""
GOOD_CODES = (0, 2)
LOGS = ("metrics.jsonl", "tensorboard", "trainer.lock", "parameters.txt", "config.gin")
"""What training may have written to its run folder when it fails."""


def contents(folder: Path) -> dict[Path, str]:
    """Returns a digest of each file below a folder; links are not followed."""
    result = {}
    for place, _, files in os.walk(folder):
        for path in (Path(place, name) for name in files):
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            result[path] = hashlib.sha256(content).hexdigest()
    return result


def lost(case: Case, code: int, before: dict[Path, str], after: dict[Path, str]) -> list[str]:
    """Returns the files that a program changed or removed, although they are not its own.

    Compiled programs and kept translations are caches. All other outputs may change only if the program
    succeeds. If training fails, it may have written its logs.
    """
    words = dict(word[2:].split("=", 1) for word in case.arguments if "=" in word)
    outputs = ["output", "out", "report", "json", "html"]
    outputs += ["workdir"] if case.program == "train" else []
    own = [words[name] for name in outputs if name in words]
    if code:
        own = [f"{words['workdir']}/{name}" for name in LOGS] if "workdir" in words else []
    roots = [Path(os.path.realpath(path)) for path in own]
    return [
        str(path)
        for path, digest in before.items()
        if after.get(path) != digest
        and not {"programs", "decodes"} & set(path.parts)
        and not any(Path(os.path.realpath(path)).is_relative_to(root) for root in roots)
    ]


class TooLong(BaseException):
    """A case takes longer than CASE_SECONDS."""


def defect_of(case: Case, folder: Path) -> tuple[str, str] | None:
    """Runs a case; returns (kind of defect, what was said), or None. No file may be lost."""
    before = contents(folder.parent)

    def too_long(*_: object) -> None:
        raise TooLong

    said = io.StringIO()
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(CASE_SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = commands.main([*case.program.split(), *case.arguments])
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
    if gone := lost(case, code, before, contents(folder.parent)):
        return f"files lost or changed by {case.program}", f"{gone[:5]}\n{said.getvalue()}"
    return None


def work(seed: int, first: int, count: int) -> None:
    """Runs cases on the files of this folder; appends one line to `results` before and after each."""
    good = Path.cwd()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with (good / "results").open("a") as log:
        for number in range(first, first + count):
            folder = Path(tempfile.mkdtemp(dir=good, prefix="case-"))
            os.chdir(folder)
            case = Maker(good, folder, generator(seed, number)).case()
            print(json.dumps({"begins": number, "case": str(case)}), file=log, flush=True)
            defect = defect_of(case, folder)
            print(json.dumps({"ended": number, "defect": defect}), file=log, flush=True)
            # What a case left behind must not complain on stderr in the next one.
            gc.collect()
            os.chdir(good)
            shutil.rmtree(folder, ignore_errors=True)


def campaign(clock: Clock, seed: int, only: int | None = None) -> Report:
    """Runs cases until the time is over or there are enough, in processes of a few hundred cases each."""
    good = small_run.prepared_folder()
    defects: dict[str, list[str]] = collections.defaultdict(list)
    programs: collections.Counter[str] = collections.Counter()
    number, results = only or 0, good / "results"
    try:
        _, failure = small_run.to_the_end(good, "run", **{"Train.bleu_sentences": 0})
        if failure:
            return Report("the good run failed", [failure])
        while not clock.is_over():
            results.write_text("")
            count = 1 if only is not None else int(min(300, clock.cases_left))
            code = watch(good, seed, number, count, clock)
            current = ""
            for line in map(json.loads, results.read_text().splitlines()):
                if "begins" in line:
                    current, number = line["case"], line["begins"] + 1
                    programs[current.partition(" --")[0]] += 1
                    clock.count()
                elif line["defect"]:
                    kind, said = line["defect"]
                    defects[kind].append(f"case {line['ended']}: {current}\n{last_lines(said, 6)}")
            if code:
                defects[f"the process died with {code}"].append(f"case {number - 1}: {current}")
            say(
                f"wrong input: {programs.total()} cases, {len(defects)} kinds of defects; "
                f"{clock.left:.0f} s left"
            )
            if only is not None:
                break
    finally:
        small_run.remove(good)
    counts = ", ".join(f"{name} {count}" for name, count in programs.most_common())
    texts = [f"{kind}, {len(texts)} times, first {texts[0]}" for kind, texts in defects.items()]
    return Report(f"{programs.total()} cases: {counts}", texts)


def watch(good: Path, seed: int, first: int, count: int, clock: Clock) -> int:
    """Runs `work` in a process; returns its exit code, or 0 if it was still running at the end."""
    code = f"from tests.soak import wrong_input; wrong_input.work({seed}, {first}, {count})"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=good,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2])},
            timeout=clock.left,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 0
    return done.returncode
