import errno
import gc
import json
import os
import pickle
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
import zlib
from contextlib import suppress

import numpy as np
import pytest
import torch

from pyro_gprn.archive import ArchiveError, read_archive, reading, write_archive

TREE = {
    "numbers": [1, 0.1, float("nan"), float("-inf"), None, True, "text"],
    "tensors": {"a": torch.randn(3, 2, dtype=torch.float64), "b": [torch.arange(4), torch.tensor(1.5)]},
    "empty": {"list": [], "dict": {}, "tensor": torch.zeros(0, 3)},
}


@pytest.fixture
def path(tmp_path):
    write_archive(tmp_path / "tree", "example", TREE)
    return tmp_path / "tree"


def test_what_comes_out_is_what_went_in(path):
    tree = read_archive(path, "example")
    assert str(tree["numbers"]) == str(TREE["numbers"])
    assert torch.equal(tree["tensors"]["a"], TREE["tensors"]["a"])
    assert tree["tensors"]["b"][1].shape == ()
    assert tree["tensors"]["b"][0].dtype == torch.int64
    assert tree["empty"]["tensor"].shape == (0, 3)
    assert list(path.parent.iterdir()) == [path]  # nothing half-written is left behind


def test_what_an_archive_cannot_hold_is_refused_and_leaves_the_file_alone(path):
    before = path.read_bytes()
    with pytest.raises(TypeError, match="got function"):
        write_archive(path, "example", {"code": test_what_comes_out_is_what_went_in})
    assert path.read_bytes() == before


def test_another_kind_is_refused(path):
    with pytest.raises(ArchiveError, match="holds a example, not a checkpoint"):
        read_archive(path, "checkpoint")


@pytest.mark.parametrize("keep", [0, 10, 300, -40])
def test_a_truncated_file_says_so(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ArchiveError, match="damaged"):
        read_archive(path, "example")


def test_a_changed_byte_is_noticed(path):
    content = bytearray(path.read_bytes())
    place = bytes(content).index(TREE["tensors"]["a"].numpy().tobytes())
    content[place + 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match="damaged"):
        read_archive(path, "example")


def entries_of(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_entries(path, entries, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def rewrite(path, change):
    """The archive with its header changed."""
    entries = entries_of(path)
    header = json.loads(entries["header.json"])
    change(header)
    write_entries(path, entries | {"header.json": json.dumps(header)})


def test_a_later_version_says_to_upgrade(path):
    rewrite(path, lambda header: header.update(version=99))
    with pytest.raises(ArchiveError, match=r"file version 99.*upgrade"):
        read_archive(path, "example")


def test_files_of_others_are_refused(path, tmp_path):
    rewrite(path, lambda header: header.update(format="another"))
    with pytest.raises(ArchiveError, match="not a file of pyro_gprn"):
        read_archive(path, "example")
    foreign = tmp_path / "foreign"
    with foreign.open("wb") as file:
        np.savez(file, a=np.ones(3))
    with pytest.raises(ArchiveError, match="not a file of pyro_gprn"):
        read_archive(foreign, "example")
    foreign.write_text("just text")
    with pytest.raises(ArchiveError, match="not a file of pyro_gprn"):
        read_archive(foreign, "example")
    with pytest.raises(FileNotFoundError):
        read_archive(tmp_path / "nowhere", "example")


def array_entry(shape, content=b"", descr="'|u1'", version=1):
    """An entry that says it is an array of this shape and type: 128 bytes, then its content."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    start = b"\x93NUMPY" + bytes([version, 0])
    n_digits = 2 if version == 1 else 4
    text = text.ljust(127 - len(start) - n_digits) + b"\n"
    return start + len(text).to_bytes(n_digits, "little") + text + content


def header_of(tree):
    return json.dumps({"format": "pyro-gprn", "version": 1, "kind": "example", "tree": tree})


class Code:
    def __reduce__(self):
        return (exec, ("raise RuntimeError('code was run')",))


def test_code_in_a_file_is_never_run(path):
    write_entries(path, entries_of(path) | {"0.npy": array_entry((), pickle.dumps(Code()), "'|O'")})
    with pytest.raises(ArchiveError, match=r"damaged: 0.npy holds values of type object, not numbers"):
        read_archive(path, "example")


def compressed_header(path):
    write_entries(path, {"header.json": b" " * 2**28}, zipfile.ZIP_DEFLATED)


def compressed_array(path):
    entries = {"header.json": header_of({"a": {"$tensor": 0}}), "0.npy": array_entry((2**28,), bytes(2**28))}
    write_entries(path, entries, zipfile.ZIP_DEFLATED)


def array_of_a_huge_shape(path):
    write_entries(path, {"header.json": header_of({"a": {"$tensor": 0}}), "0.npy": array_entry((2**40,))})


def tensor_that_is_named_often(path):
    tree = {"a": [{"$tensor": 0}] * 200}
    write_entries(path, {"header.json": header_of(tree), "0.npy": array_entry((2**20,), bytes(2**20))})


def entries_on_top_of_each_other(path):
    """Ten arrays, each of which goes on to the end of the last one, over all those between."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", header_of({"a": [{"$tensor": number} for number in range(10)]}))
        for number in range(10):
            after = (9 - number) * (30 + len("0.npy") + 128)
            archive.writestr(f"{number}.npy", array_entry((2**20 + after,), bytes(2**20 if number == 9 else 0)))
        archive.fp.flush()
        content = path.read_bytes()
        for entry in archive.infolist()[1:]:
            data = content[entry.header_offset + 30 + len("0.npy") :]
            entry.file_size, entry.compress_size, entry.CRC = len(data), len(data), zlib.crc32(data)


def nested_header(path):
    write_entries(path, {"header.json": b"[" * 100_000})


def peak_of_refusing(path):
    """The memory that reading takes before it refuses the file, in bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveError, match="damaged"):
            read_archive(path, "example")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "bomb",
    [
        compressed_header,
        compressed_array,
        array_of_a_huge_shape,
        tensor_that_is_named_often,
        entries_on_top_of_each_other,
        nested_header,
    ],
)
def test_a_small_file_that_asks_for_much_memory_is_refused_with_little(bomb, path):
    bomb(path)
    assert path.stat().st_size < 1_500_000
    assert peak_of_refusing(path) < 4e6


def test_a_header_that_is_too_large_is_refused_unread(path):
    write_entries(path, {"header.json": b" " * (2**25 + 1)})
    assert peak_of_refusing(path) < 4e6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "1"}, "its version is '1', not a whole number"),
        ({"version": None}, "its version is None"),
        ({"version": True}, "its version is True"),
        ({"version": 0}, "its version is 0"),
        ({"tree": [1]}, "its tree is a list, not a dict"),
        ({"tree": "x"}, "its tree is a str, not a dict"),
        ({"tree": {}}, "its header does not name '0.npy'"),
        ({"tree": {"a": [{"$tensor": n} for n in (0, 1, 2, 3, 9)]}}, "it has no '9.npy'"),
        ({"tree": {"a": [{"$tensor": n} for n in (0, 1, 2, 3, -1)]}}, "it has no '-1.npy'"),
        ({"tree": {"a": [{"$tensor": 0}] * 2}}, "its header names '0.npy' more than once"),
        ({"tree": {"a": {"$tensor": "0"}}}, "{'[$]tensor': '0'} is not the number of a tensor"),
        ({"tree": {"a": {"$tensor": 0.0}}}, "{'[$]tensor': 0.0} is not the number of a tensor"),
        ({"tree": {"a": {"$tensor": False}}}, "{'[$]tensor': False} is not the number of a tensor"),
        ({"tree": {"a": {"$tensor": [0]}}}, r"{'[$]tensor': \[0\]} is not the number of a tensor"),
        ({"tree": {"a": {"$tensor": 0, "b": 1}}}, "{'[$]tensor': 0, 'b': 1} is not the number of a tensor"),
    ],
)
def test_an_edited_header_says_what_is_wrong(path, change, message):
    rewrite(path, lambda header: header.update(change))
    with pytest.raises(ArchiveError, match=f"tree is damaged: {message}"):
        read_archive(path, "example")


@pytest.mark.parametrize("field", ["version", "kind", "tree"])
def test_a_header_without_a_field_says_so(path, field):
    rewrite(path, lambda header: header.pop(field))
    with pytest.raises(ArchiveError, match=f"tree is damaged: it has no '{field}'"):
        read_archive(path, "example")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[1]", b"null", b'"pyro-gprn"', b"9" * 10_000])
def test_a_header_that_is_something_else_is_refused(path, text):
    write_entries(path, entries_of(path) | {"header.json": text})
    with pytest.raises(ArchiveError, match=r"is damaged|is not a file of pyro_gprn"):
        read_archive(path, "example")


def test_a_tree_that_is_nested_too_deeply_is_refused(path):
    write_entries(path, {"header.json": header_of({"a": 0}).replace("0}", "[" * 5000 + "]" * 5000 + "}")})
    with pytest.raises(ArchiveError, match="nested too deeply"):
        read_archive(path, "example")


def test_an_entry_that_the_header_does_not_name_is_refused(path):
    write_entries(path, entries_of(path) | {"../more": b"x"})
    with pytest.raises(ArchiveError, match=r"its header does not name '../more'"):
        read_archive(path, "example")


def test_an_entry_that_is_there_twice_is_refused(path):
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("0.npy", entries_of(path)["0.npy"])
    with pytest.raises(ArchiveError, match=r"it holds '0.npy' more than once"):
        read_archive(path, "example")


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"text",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff",
        array_entry((6,), bytes(5)),
        array_entry((6,), bytes(7)),
        array_entry((-3, -2), bytes(6)),
        array_entry((0, 2**70)),
        array_entry((0, 2**62, 2**62)),
        array_entry((3.0, 2.0), bytes(6)),
        array_entry("(3, 2", bytes(6)),
        array_entry('"""', bytes(6)),
        array_entry("[" * 30, bytes(6)),
        array_entry("-" * 30 + "1", bytes(6)),
        array_entry((6,), bytes(6), version=2),
        array_entry((6,), bytes(6), version=9),
        array_entry((6,), bytes(48), "'>f8'"),
        array_entry((6,), bytes(48), "'<U2'"),
        array_entry((6,), bytes(48), "'|V8'"),
        array_entry((6,), bytes(48), "[('a', '<f8')]"),
        array_entry((6,), bytes(48), "'nonsense'"),
        array_entry((6,), bytes(48), "3"),
    ],
)
def test_an_array_that_is_not_what_it_should_be_is_refused(path, entry):
    write_entries(path, entries_of(path) | {"0.npy": entry})
    with pytest.raises(ArchiveError, match="damaged"):
        read_archive(path, "example")


def test_an_error_of_the_system_stays_what_it_is(path, tmp_path, monkeypatch):
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        read_archive(tmp_path, "example")

    def refuse(file, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr("io.open", refuse)
    with pytest.raises(PermissionError, match=str(path)):
        read_archive(path, "example")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: {}["missing"],
        lambda: [][0],
        lambda: None + 1,
        lambda: None.name,
        lambda: int("x"),
        lambda: int(float("inf")),
        lambda: torch.ones(2).reshape(3),
    ],
)
def test_content_of_a_wrong_type_or_value_is_damage(wrong):
    with pytest.raises(ArchiveError, match=r"^file is damaged: "), reading("file"):
        wrong()


@pytest.mark.parametrize(
    "error",
    [
        ArchiveError("said"),
        FileNotFoundError("x"),
        KeyboardInterrupt(),
        MemoryError(),
        torch.cuda.OutOfMemoryError("x"),
    ],
)
def test_other_errors_while_reading_pass_unchanged(error):
    with pytest.raises(type(error)) as raised, reading("file"):
        raise error
    assert raised.value is error


def test_any_damage_is_noticed_or_harmless_and_leaves_no_file_open(path):
    write_archive(path, "example", {"a": [torch.tensor([1.5]), "x"]})
    content = path.read_bytes()
    cut = [content[:length] for length in range(len(content))]
    changed = [
        content[:place] + bytes([content[place] ^ change]) + content[place + 1 :]
        for place in range(len(content))
        for change in (1, 255)
    ]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for damaged in cut + changed:
            path.write_bytes(damaged)
            with suppress(ArchiveError):
                assert str(read_archive(path, "example")) == "{'a': [tensor([1.5000]), 'x']}"
        gc.collect()
    assert [str(warning.message) for warning in seen] == []


@pytest.mark.parametrize("part", [np.s_[:], np.s_[:, ::2]], ids=["whole", "every other column"])
def test_a_large_tensor_is_written_and_read_without_a_second_copy(tmp_path, part):
    tensor = torch.zeros(2**13, 2**12)[part]  # 128 MB, or half of it
    n_bytes = 4 * tensor.numel()
    tracemalloc.start()
    try:
        write_archive(tmp_path / "large", "example", {"a": tensor})
        peak_of_writing = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        read = read_archive(tmp_path / "large", "example")["a"]
        peak_of_reading = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert torch.equal(read, tensor)
    assert peak_of_writing < 40e6
    assert peak_of_reading < n_bytes + 2e6


@pytest.mark.parametrize("room", [10, 1_000, 50_300])  # the disk is full in the header, in a tensor, at the very end
def test_a_file_that_cannot_be_written_leaves_the_one_before_and_nothing_else(path, room):
    resource = pytest.importorskip("resource")
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_archive(path, "example", {"a": torch.zeros(12_500)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a file that is open cannot be removed")
def test_what_a_killed_process_left_is_removed_by_the_next_to_write(path):
    killed = subprocess.Popen([sys.executable, "-c", "pass"])
    killed.wait()
    left = path.with_name(f"{path.name}.{killed.pid}.partial")
    at_work = path.with_name(f"{path.name}.{os.getppid()}.partial")  # of a process that runs
    others = [path.with_name(name) for name in (f"x{path.name}.{killed.pid}.partial", f"{path.name}.mine.partial")]
    for file in (left, at_work, *others):
        file.write_bytes(b"half")
    write_archive(path, "test", {"a": 1})
    assert not left.exists()
    assert all(file.exists() for file in (at_work, *others))
    assert read_archive(path, "test") == {"a": 1}


def test_a_tree_that_could_not_be_read_again_is_not_written(path):
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"the key '\$tensor'"):
        write_archive(path, "example", {"a": {"$tensor": 1, "b": 2}})
    with pytest.raises(ValueError, match=r"at most 33554432 bytes .* got 33554"):
        write_archive(path, "example", {"a": "x" * 2**25})
    assert path.read_bytes() == before
