"""Files are found, downloaded and checked. Each test has its own server and its own cache."""

import hashlib
import sys
from dataclasses import replace

import pooch
import pytest

from pyro_gprn.datasets.published import fetch as fetching
from pyro_gprn.datasets.published.fetch import RemoteFile, checksum_of, fetch

CONTENT = b"1 2\n3 4\n"
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture
def published(website):
    return RemoteFile("toy/X.txt", website.publish("data/X.txt", CONTENT), SHA256)


def test_a_file_is_downloaded_once(published, website, cache):
    assert fetch(published) == cache / "toy/X.txt"
    website.close()
    assert fetch(published).read_bytes() == CONTENT
    assert website.requests == ["/data/X.txt"]


def test_a_checksum_of_git_is_checked_too(website, tmp_path):
    # git hash-object of a file that holds "hello\n"
    (tmp_path / "hello").write_bytes(b"hello\n")
    blob = "git-blob:ce013625030ba8dba906f756967f9e9ca394464a"
    assert checksum_of(tmp_path / "hello", "git-blob") == blob
    assert fetch(RemoteFile("toy/hello", website.publish("hello", b"hello\n"), blob)).read_bytes() == b"hello\n"
    with pytest.raises(ValueError, match="checksum should be git-blob"):
        fetch(RemoteFile("toy/other", website.publish("other", b"hullo\n"), blob))


def test_a_download_with_another_checksum_is_refused_and_not_kept(website, cache):
    address = website.publish("X.txt", b"altered")
    with pytest.raises(ValueError, match=f"X.txt is not the toy/X.txt it was.*{SHA256}"):
        fetch(RemoteFile("toy/X.txt", address, SHA256))
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_file_whose_checksum_no_one_knows_is_taken_as_it_is(published, website):
    assert fetch(replace(published, checksum=None)).read_bytes() == CONTENT
    website.close()
    fetch(replace(published, checksum=None))
    assert len(website.requests) == 1


def test_a_download_that_fails_at_first_is_tried_again(published, website, monkeypatch):
    monkeypatch.setattr(fetching, "RETRIES", 1)
    monkeypatch.setattr(pooch.core.time, "sleep", lambda seconds: None)  # pooch waits a second before it tries again
    website.failures = 1
    assert fetch(published).read_bytes() == CONTENT
    assert len(website.requests) == 2


def test_a_cached_file_that_changed_is_downloaded_again(published, website, cache):
    fetch(published).write_bytes(b"altered")
    assert fetch(published).read_bytes() == CONTENT
    assert len(website.requests) == 2


def test_a_folder_of_the_users_own_comes_first_and_needs_no_extra(published, website, tmp_path, monkeypatch):
    for module in ("pooch", "platformdirs"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("PYRO_GPRN_DATA", str(tmp_path / "mine"))
    own = tmp_path / "mine/toy/X.txt"
    own.parent.mkdir(parents=True)
    own.write_bytes(CONTENT)
    assert fetch(published) == own
    assert not website.requests


def test_a_file_in_the_users_own_folder_that_is_another_is_refused(published, tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_GPRN_DATA", str(tmp_path))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/X.txt").write_bytes(CONTENT + b"5 6\n")
    with pytest.raises(ValueError, match=r"toy/X.txt is not the published toy/X.txt"):
        fetch(published)


def test_what_is_not_in_the_users_own_folder_is_downloaded(published, tmp_path, cache, monkeypatch):
    monkeypatch.setenv("PYRO_GPRN_DATA", str(tmp_path / "empty"))
    assert fetch(published) == cache / "toy/X.txt"


@pytest.mark.parametrize("folder", [None, "mine"])
def test_without_internet_the_error_says_what_to_do(published, website, tmp_path, cache, monkeypatch, folder):
    if folder:
        monkeypatch.setenv("PYRO_GPRN_DATA", str(tmp_path / folder))
    website.close()
    with pytest.raises(FileNotFoundError) as caught:
        fetch(published)
    message = str(caught.value)
    looked_in = str(tmp_path / folder / "toy/X.txt") if folder else "PYRO_GPRN_DATA is not set"
    for part in ("toy/X.txt could not be downloaded", looked_in, str(cache / "toy/X.txt"), published.address):
        assert part in message
    assert "set the environment variable PYRO_GPRN_DATA" in message


def test_a_page_that_is_gone_is_an_error_too(published, website):
    with pytest.raises(FileNotFoundError, match="404"):
        fetch(replace(published, address=website.address("gone.txt")))


@pytest.mark.parametrize("module", ["pooch", "platformdirs"])
def test_without_the_extra_the_error_names_it(published, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"toy/X.txt needs .*pip install 'pyro-gprn\[data\]'.*PYRO_GPRN_DATA"):
        fetch(published)


def test_a_file_in_an_installed_package_is_found_and_no_code_of_it_is_run(tmp_path, monkeypatch):
    package = tmp_path / "site/toys"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('code was run')")
    (package / "data/X.txt").write_bytes(CONTENT)
    file = RemoteFile("toy/X.txt", None, SHA256, package="toys==1.0", resource="data/X.txt")
    with pytest.raises(FileNotFoundError, match=r"pip install toys==1\.0 brings it.*\n.*\n.*PYRO_GPRN_DATA"):
        fetch(file)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert fetch(file) == package / "data/X.txt"
    (package / "data/X.txt").write_bytes(b"altered")
    with pytest.raises(ValueError, match=r"is not the published toy/X\.txt"):
        fetch(file)
