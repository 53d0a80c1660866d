"""Message catalogues (.po and .mo) in the folder of a language pair.

The texts are taken as they are. `gshard-data harvest` reads whole trees of catalogues and cleans their
messages.
"""

from collections.abc import Iterator

from gshard_nmt.data.catalogues.messages import UnreadableError, read_catalogue
from gshard_nmt.data.language_codes import names_language
from gshard_nmt.data.reading.rows import Input, SentencePair, listed, note, one_line
from gshard_nmt.errors import UserError

_ENGLISH = "en"


def read_gettext(source: Input) -> Iterator[list[SentencePair]]:
    """Yields the messages of a catalogue that have a translation, in one block.

    Raises:
      UserError: the file is damaged, or neither language is English.
    """
    (path,) = source.files
    if not any(names_language(_ENGLISH, tag) for tag in (source.source, source.target)):
        raise UserError(
            f"{path} is a message catalogue, whose messages are English, but its folder is of "
            f"{source.source} and {source.target}; put it into a folder with English, or remove it."
        )
    is_english_first = names_language(_ENGLISH, source.source)
    try:
        contents = read_catalogue(path)
    except UnreadableError as error:
        raise UserError(
            f"{path} cannot be read: {error}. {error.remedy}, or remove the file; msgfmt --check tests a "
            ".po file."
        ) from None
    rows = []
    for message in contents.messages:
        texts = (one_line(message.english), one_line(message.translation))
        if texts[0].strip() and texts[1].strip():
            rows.append(SentencePair(*(texts if is_english_first else texts[::-1])))
    if contents.incomplete:
        entries = listed([repr(one_line(english)) for english in contents.incomplete])
        note(
            f"{path} has entries with plural forms on one side only, which are left out: {entries}"
        )
    if contents.unclear:
        note(
            f"{path} has {contents.unclear} plurals without a right Plural-Forms in its header; the "
            "first form is used for the singular and the last for the plural"
        )
    yield rows
