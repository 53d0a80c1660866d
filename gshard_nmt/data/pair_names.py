"""The names of language pairs, such as fr-en, sr-Latn-en, zh_CN-en or deu-eng."""

from gshard_nmt.data.language_codes import EXACT, folder_tag, is_english, same
from gshard_nmt.data.reading.layout import split_of
from gshard_nmt.errors import UserError

ENGLISH = "en"


def split_pair(name: str) -> tuple[str, str] | None:
    """Splits the name of a language pair: pt-BR-en -> (pt-BR, en), zh_cn-en -> (zh-CN, en).

    If capital letters do not tell regions from languages, a name with `en` at one end is split there.

    Returns:
      The BCP 47 tags of the source and the target; None if the name is not that of a pair.

    Raises:
      UserError: the name can be split in several ways.
    """
    parts = name.split("-")
    codes = [("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts))]
    pairs = [pair for pair in codes if all(map(EXACT.fullmatch, pair))] or codes
    tags = list(dict.fromkeys(pair for pair in map(_tags, pairs) if pair))
    if len(tags) > 1:
        tags = [pair for pair in tags if ENGLISH in pair] or tags
    if len(tags) > 1:
        readings = ", or ".join(f"{source} and {target}" for source, target in tags)
        names = " or ".join(f"{source}-{target}" for source, target in tags)
        raise UserError(
            f"the name {name} is not clear: it may be the pair of {readings}. Write regions with capital "
            f"letters: {names}."
        )
    return tags[0] if tags else None


def pair_in(stem: str) -> tuple[str, str] | None:
    """Returns the pair that a part of a file's name names; None if no part does.

    Europarl.en-fr has the pair (en, fr), and opus.de-en-train the pair (de, en). The parts stand between
    dots. The name of a corpus may look like a pair, so the last part counts.

    Raises:
      UserError: the part can be split in several ways.
    """
    for part in reversed(stem.split(".")):
        while "-" in part and split_of(part.rpartition("-")[2]):
            part = part.rpartition("-")[0]
        if "-" in part and (pair := split_pair(part)):
            return pair
    return None


def _tags(codes: tuple[str, str]) -> tuple[str, str] | None:
    """Returns the tags of two codes; None if one is no code or both are one language.

    English of any region is `en`, unless both languages are English.
    """
    source, target = map(folder_tag, codes)
    if source is None or target is None or same(source, target):
        return None
    if is_english(source) and is_english(target):
        return source, target
    return ENGLISH if is_english(source) else source, ENGLISH if is_english(target) else target
