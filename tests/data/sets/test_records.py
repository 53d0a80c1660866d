"""The files of tokenized examples: few open files, and errors for damage."""

import os
import threading
import zlib

import numpy as np
import pytest

from gshard_nmt.data.sets.records import LocalCopies, OpenShards, ShardReader, ShardWriter
from gshard_nmt.data.sets.shards import word_type
from gshard_nmt.errors import UserError

EXAMPLES = [([7, 8, 1], [9, 1]), ([5, 1], [6, 4, 1]), ([1], [1]), ([300, 1], [2, 2, 1])]


def written(folder, numbers):
    """Writes a shard with the examples for each number and returns all files, as a reader takes them."""
    word, files = word_type(500), []
    for number in numbers:
        writer = ShardWriter(folder / "fr-en", "train", word, number=number)
        writer.write([([number + 10, *source], target) for source, target in EXAMPLES])
        files += writer.close()
    return [(f"fr-en/{name}", size, count) for name, size, count in files]


def test_the_bytes_of_the_example_of_the_module(tmp_path):
    writer = ShardWriter(tmp_path, "train", word_type(500))
    writer.write([([7, 8, 1], [9, 1])])
    ((name, size, count),) = writer.close()
    words = np.frombuffer((tmp_path / name).read_bytes(), "<u2").tolist()
    assert words[2:8] == [3, 7, 8, 1, 9, 1]
    assert words[8:] == [0, 0, 0, 0, 16, 0, 0, 0]
    assert (name, size, count) == ("train-00000.ids", 32, 1)


def test_the_number_of_open_files_is_bounded(tmp_path):
    files = written(tmp_path, range(9))
    before = len(os.listdir("/proc/self/fd"))
    shards = OpenShards(most=3)
    reader = ShardReader(LocalCopies(tmp_path, tmp_path), files, word_type(500), shards)
    order = np.random.default_rng(0).permutation(36)
    examples = reader.read_many(*np.divmod(order, 4))
    firsts = np.cumsum(examples.source_lengths) - examples.source_lengths
    assert examples.source[firsts].tolist() == (order // 4 + 10).tolist()
    assert len(os.listdir("/proc/self/fd")) == before + 3
    shards.close()
    assert len(os.listdir("/proc/self/fd")) == before
    reader.read(np.array([5]))  # a closed shard is opened again
    assert len(os.listdir("/proc/self/fd")) == before + 1


def test_threads_share_a_reader(tmp_path):
    files = written(tmp_path, range(6))
    reader = ShardReader(LocalCopies(tmp_path, tmp_path), files, word_type(500), OpenShards(most=1))
    wrong = []

    def read(seed):
        for index in np.random.default_rng(seed).integers(0, 24, 60):
            (example,) = reader.read(np.array([index]))
            if example.source[0] != index // 4 + 10:
                wrong.append(index)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("place", range(-40, 0))
def test_every_wrong_offset_is_an_error_or_does_no_harm(tmp_path, place):
    files = written(tmp_path, [0])
    path = tmp_path / files[0][0]
    content = bytearray(path.read_bytes())
    content[place] ^= 0x41
    path.write_bytes(content)
    reader = ShardReader(LocalCopies(tmp_path, tmp_path), files, word_type(500))
    with pytest.raises(UserError, match=r"is damaged: fr-en/train-00000\.ids cannot be read \("):
        reader.read(np.arange(4))


@pytest.mark.parametrize("size", [500, 1 << 17])
def test_many_records_are_written_as_single_ones(tmp_path, size):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 5, (20, 2)).tolist()
    examples = [([4] * n, rng.integers(0, 500, m).tolist()) for n, m in lengths]
    files = []
    for name, step in (("single", 1), ("many", 7)):
        writer = ShardWriter(tmp_path, name, word_type(size))
        for first in range(0, len(examples), step):
            writer.write(examples[first : first + step])
        files.append([(tmp_path / shard).read_bytes() for shard, *_ in writer.close()])
    assert files[0] == files[1]
    (head,) = np.frombuffer(files[0][0], "<u4", 1)
    content = np.array([lengths[0][0], *examples[0][0], *examples[0][1]], word_type(size)).tobytes()
    assert head == zlib.crc32(content)
    assert files[0][0][4 : 4 + len(content)] == content
