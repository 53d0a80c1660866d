"""Writes .mo files for tests."""

import struct

HEADER = ("", "Content-Type: text/plain; charset=UTF-8\n")


def mo(entries, order: str = "<", header: str = HEADER[1]) -> bytes:
    """Returns a .mo file with entries (msgid, msgstr), in the byte order "<" or ">"."""
    entries = sorted([("", header), *entries])
    ids, strings = ([text[i].encode() + b"\0" for text in entries] for i in range(2))
    at = 28 + 16 * len(entries)
    tables = []
    for texts in (ids, strings):
        table = []
        for text in texts:
            table += [len(text) - 1, at]
            at += len(text)
        tables.append(table)
    first = 28
    header = [0x950412DE, 0, len(entries), first, first + 8 * len(entries), 0, 0]
    numbers = header + tables[0] + tables[1]
    return struct.pack(f"{order}{len(numbers)}I", *numbers) + b"".join(ids + strings)
