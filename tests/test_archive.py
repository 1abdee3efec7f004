import json
import pickle
import zipfile

import numpy as np
import pytest
import torch

from pyro_gprn.archive import ArchiveError, read_archive, write_archive

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


def rewrite(path, change):
    """The archive with its header changed."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(entries["header.json"])
    change(header)
    entries["header.json"] = json.dumps(header).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


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


class Bomb:
    def __reduce__(self):
        return (exec, ("raise RuntimeError('code was run')",))


def test_code_in_a_file_is_never_run(path):
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (), }"
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    entries["0.npy"] = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + pickle.dumps(Bomb())
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(ArchiveError, match="damaged"):
        read_archive(path, "example")
