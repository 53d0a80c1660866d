"""Writes the test text of a corpus as people type it, to measure what that does to a model.

    .venv/bin/python scripts/changed_text.py --corpus data/demo/corpus --out data/demo/changed
    .venv/bin/gshard-eval --workdir runs/demo --corpus data/demo/changed/capitals --report capitals

Each kind of change is a corpus of its own. It has the lines that the kind can change, at most `--lines`
of each language. The code is not that of `Data.augmentation`: nothing here uses the package. The same
corpus gives the same files.
"""

import argparse
import gzip
import itertools
import random
import re
from pathlib import Path

EMOJI = ["😀", "🎉", "👍", "❤️", "🚗", "🐱", "✅", "📌", "😂", "🙏", "🤷", "🌈", "🧪", "🥳"]
PLACEHOLDERS = [
    *("{{user_name}}", "{0}", "%(total)d", "${project.name}", '<x id="3"/>', "%2$s"),
    *("{count, number}", "$(PWD)", "<strong>", "{{ item.price }}"),
]
ADDRESSES = [
    *("192.168.{}.{}", "10.{}.0.{}", "/opt/app{}/run{}.log", "https://shop.example.net/p?id={}{}"),
    *("team{}@mail{}.info", "v{}.{}.4", "0x{}{}fe", r"C:\Temp\a{}\b{}"),
]
FINAL = ".!?:…。！？।؟"
KEYS = "qwertyuiopasdfghjklzxcvbnm"

Rows = tuple[str, str]


def capitals(source: str, target: str, _: random.Random) -> Rows:
    """Changes lines in which each letter has a capital, and no code is changed too."""
    has_capitals = all(letter.lower() != letter.upper() for letter in source if letter.isalpha())
    is_text = not re.search(r"[%<{$@\\/_=]", source)
    return (source.upper(), target.upper()) if has_capitals and is_text else (source, target)


def emoji(source: str, target: str, draw: random.Random) -> Rows:
    symbol = draw.choice(EMOJI)
    return f"{source} {symbol}", f"{target} {symbol}"


def placeholders(source: str, target: str, draw: random.Random) -> Rows:
    pattern = draw.choice(("{1} {0}", "{0} {1}", "{0} ({1})"))
    value = draw.choice(PLACEHOLDERS)
    return pattern.format(source, value), pattern.format(target, value)


def addresses(source: str, target: str, draw: random.Random) -> Rows:
    value = draw.choice(ADDRESSES).format(draw.randint(1, 99), draw.randint(1, 99))
    pattern = draw.choice(("{1}: {0}", "{0} {1}"))
    return pattern.format(source, value), pattern.format(target, value)


def numbers(source: str, target: str, draw: random.Random) -> Rows:
    found = re.findall(r"\d+", source)
    if "%" in source or sorted(found) != sorted(re.findall(r"\d+", target)):
        return source, target
    new = {old: "".join(draw.choice("23456789") for _ in old) for old in dict.fromkeys(found)}
    changed = [re.sub(r"\d+", lambda match: new[match[0]], text) for text in (source, target)]
    return changed[0], changed[1]


def no_punctuation(source: str, target: str, _: random.Random) -> Rows:
    bare = source.rstrip().rstrip(FINAL).rstrip()
    return (bare, target.rstrip().rstrip(FINAL).rstrip()) if bare else (source, target)


def typing_errors(source: str, target: str, draw: random.Random) -> Rows:
    """Makes an error in each 40 characters: doubles or drops a letter, repeats the next, or mistypes."""
    letters = list(source)
    inside = [match.start() + 1 for match in re.finditer(r"(?=[^\W\d_]{3})", source)]
    for place in draw.sample(inside, min(len(inside), 1 + len(source) // 40)):
        key = KEYS.find(letters[place].lower())
        errors = [letters[place] * 2, "", letters[place + 1] + letters[place]]
        letters[place] = draw.choice([*errors, KEYS[(key + 1) % len(KEYS)]] if key >= 0 else errors)
    return "".join(letters), target


CHANGES = (capitals, emoji, placeholders, addresses, numbers, no_punctuation, typing_errors)


def two_sentences(rows: list[Rows]) -> list[Rows]:
    """Returns each sentence that ends as one, with the next such sentence in the same line."""
    ends = [row for row in rows if all(text.endswith((".", "!", "?")) for text in row)]
    return [(f"{a[0]} {b[0]}", f"{a[1]} {b[1]}") for a, b in itertools.pairwise(ends)]


def rows_of(folder: Path, languages: list[str]) -> list[Rows]:
    files = [folder / f"test.{language}.gz" for language in languages]
    lines = [gzip.decompress(file.read_bytes()).decode().split("\n")[:-1] for file in files]
    return list(zip(*lines, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--corpus", type=Path, required=True, help="the folder of gshard-data harvest")
    add("--out", type=Path, required=True, help="the folder to make")
    add("--lines", type=int, default=60, help="the most lines of a language and kind")
    arguments = parser.parse_args()
    for folder in sorted(arguments.corpus.glob("*-en")):
        languages = [folder.name.removesuffix("-en"), "en"]
        rows = rows_of(folder, languages)
        kinds = {"two_sentences": two_sentences(rows)}
        for change in CHANGES:
            draw = random.Random(f"{change.__name__} {folder.name}")
            changed = [(row, change(*row, draw)) for row in rows]
            kinds[change.__name__] = [after for before, after in changed if after != before]
        for kind, changed_rows in kinds.items():
            kept = changed_rows[: arguments.lines]
            if not kept:
                continue
            made = arguments.out / kind / folder.name
            made.mkdir(parents=True, exist_ok=True)
            for side, language in enumerate(languages):
                text = "".join(f"{row[side]}\n" for row in kept)
                (made / f"test.{language}").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
