"""Lines of files: what ends a line, compressions, and errors with their line."""

import bz2
import gzip
import lzma

import pytest
import zstandard

from gshard_nmt.data.reading import text_lines
from gshard_nmt.data.reading.text_lines import line_blocks, lines, without_compression
from gshard_nmt.errors import UserError

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    # As the program zstd does, it adds a checksum.
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}
TEXT = "".join(f"line {number} {number * 7919 % 1000003}\n" for number in range(5000)).encode()


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_files_have_the_same_lines_as_plain_ones(tmp_path, ending):
    path = tmp_path / f"train.fr{ending}"
    path.write_bytes(COMPRESS[ending](TEXT))
    assert list(lines(path)) == TEXT.decode().splitlines()
    assert without_compression(path.name) == "train.fr"


def test_only_newlines_end_a_line(tmp_path):
    path = tmp_path / "train.fr"
    path.write_bytes("\ufeffa\u2028b\r\nc\x85d\ve\rf\n\nlast\r".encode())
    assert list(lines(path)) == ["a\u2028b", "c\x85d\ve f", "", "last"]


def test_lines_do_not_depend_on_the_blocks_that_are_read(tmp_path, monkeypatch):
    path = tmp_path / "train.fr"
    content = "é\r\n\r\n東京\nno end".encode()
    path.write_bytes(content)
    for size in range(1, len(content) + 1):
        monkeypatch.setattr(text_lines, "_BLOCK", size)
        assert list(lines(path)) == ["é", "", "東京", "no end"]


@pytest.mark.parametrize("ending", [".gz", ".zst", ".xz", ".bz2"])
@pytest.mark.parametrize("damage", ["cut", "cut in the last bytes", "bytes", "plain", "nothing"])
def test_a_damaged_file_is_an_error_with_its_line(tmp_path, ending, damage):
    content = bytearray(COMPRESS[ending](TEXT))
    middle = len(content) // 2
    if damage == "cut":
        del content[middle:]
    elif damage == "cut in the last bytes":
        del content[-2:]
    elif damage == "bytes":
        content[middle : middle + 40] = b"\xff" * 40
    else:
        content[:] = {"plain": b"plain text\n", "nothing": b""}[damage]
    path = tmp_path / f"train.fr{ending}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path} is damaged after line "):
        list(lines(path))


@pytest.mark.parametrize("ending", text_lines.COMPRESSIONS)
def test_a_file_of_several_streams_is_read_to_its_end(tmp_path, ending):
    path = tmp_path / f"train.fr{ending}"
    stream = COMPRESS[ending](TEXT)
    path.write_bytes(stream + b"\0" * 8 + stream + b"\0" * 4)
    assert list(lines(path)) == TEXT.decode().splitlines() * 2
    path.write_bytes(stream + b"damaged" + stream[7:])
    with pytest.raises(UserError, match=f"^{path} is damaged after line {TEXT.count(10)}:"):
        list(lines(path))


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2"])
def test_repetitive_text_is_read_in_blocks(tmp_path, ending):
    path = tmp_path / f"train.fr{ending}"
    # Words instead of one letter would take bz2 seconds to compress.
    path.write_bytes(COMPRESS[ending]((b"a" * 9_999 + b"\n") * 6_500))
    sizes = [len(block) for block in text_lines.blocks(path)]
    assert sum(sizes) == 65_000_000
    assert max(sizes) < 1 << 25
    path = tmp_path / "train.fr.zst"
    path.write_bytes(COMPRESS[".zst"](b"\n" * (64 << 20)))
    assert max(map(len, text_lines.blocks(path))) <= 16 << 20


def test_text_that_is_not_utf8_is_reported_with_its_line(tmp_path):
    path = tmp_path / "train.fr"
    path.write_bytes(b"a\n" * 70_000 + b"\xe9t\xe9\n")
    with pytest.raises(UserError, match="line 70001 is not UTF-8"):
        list(lines(path))


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "LONGEST_LINE", 1 << 19)
    path = tmp_path / "train.fr"
    path.write_bytes(b"a\n" + b"x" * (1 << 20))
    with pytest.raises(UserError, match="line 2 has more than"):
        for _ in line_blocks(path):
            pass
