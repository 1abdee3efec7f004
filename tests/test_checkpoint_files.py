"""The file of a checkpoint: where it may be, and what happens when it cannot be read or written."""

import gc
import os
import warnings

import numpy as np
import pytest
import torch
from quick import small

from pyro_gprn.archive import ArchiveError, write_archive
from pyro_gprn.training.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("quick")

X = np.linspace(0, 1, 10)[:, None]
Y = np.sin(6 * X + np.linspace(0, 3, 5))
INFERENCES = ["collapsed", "kronecker", "mean-field", "mixture"]


def fit(inference, path, callback=None):
    r = small(n_latents=1, inference=inference, steps=50, checkpoint=path)
    return r.fit(X, Y, callback=callback)


@pytest.mark.parametrize("inference", INFERENCES)
def test_a_path_that_cannot_be_a_file_is_refused_before_training(tmp_path, inference):
    def callback(step, bound):
        pytest.fail("training began")

    (tmp_path / "file").write_text("text")
    with pytest.raises(IsADirectoryError, match=f"must be a file, but {tmp_path} is a folder"):
        fit(inference, tmp_path, callback)
    for folder in ("nowhere", "file"):
        with pytest.raises(FileNotFoundError, match=f"no folder {tmp_path / folder} for the checkpoint fit$"):
            fit(inference, tmp_path / folder / "fit", callback)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_path_without_a_folder_is_in_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Checkpoint("fit", {}).save({"step": 1})
    assert Checkpoint(tmp_path / "fit", {}).load() == {"step": 1}


def fill_disk(descriptor):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("inference", INFERENCES)
def test_a_checkpoint_that_cannot_be_written_costs_one_warning_and_not_the_fit(tmp_path, monkeypatch, inference):
    unbroken = fit(inference, None)
    monkeypatch.setattr(os, "fsync", fill_disk)
    message = r"the checkpoint .*fit could not be written \(.*No space left on device\): training goes on without it"
    with pytest.warns(UserWarning, match=message) as seen:
        result = fit(inference, tmp_path / "fit")
    assert len(seen) == 1
    assert result.elbo_ == unbroken.elbo_
    assert list(tmp_path.iterdir()) == []


def test_the_file_before_stays_when_the_next_cannot_be_written(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path / "fit", {})
    checkpoint.save({"step": 1})
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", fill_disk)
        with pytest.warns(UserWarning, match="No space left"):
            checkpoint.save({"step": 2})
        checkpoint.save({"step": 2})  # without a second warning
    assert checkpoint.load() == {"step": 1}
    assert list(tmp_path.iterdir()) == [tmp_path / "fit"]
    checkpoint.save({"step": 3})
    assert checkpoint.load() == {"step": 3}


def test_a_state_that_no_file_can_hold_is_an_error_and_no_warning(tmp_path):
    with pytest.raises(TypeError, match="got object"):
        Checkpoint(tmp_path / "fit", {}).save({"step": object()})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "it has no 'runs'"),
        ({"runs": [{"state": {}}]}, "it has no 'identity'"),
        ({"runs": [{"identity": {}}]}, "it has no 'state'"),
        ({"runs": [{"identity": None, "state": {}}]}, "its identity is a NoneType, not a dict"),
        ({"runs": [{"identity": {}, "state": [1]}]}, "its state is a list, not a dict"),
        ({"runs": [{"identity": {"seed": torch.ones(2)}, "state": {}}]}, "Boolean value of Tensor"),
    ],
)
def test_an_edited_checkpoint_says_what_is_wrong(tmp_path, content, message):
    write_archive(tmp_path / "fit", "checkpoint", content)
    with pytest.raises(ArchiveError, match=f"fit is damaged: {message}"):
        Checkpoint(tmp_path / "fit", {"seed": 0}).load()


@pytest.mark.parametrize("keep", [0, 20, 300, -30])
def test_a_truncated_checkpoint_is_refused_and_leaves_no_file_open(tmp_path, keep):
    path = tmp_path / "fit"
    Checkpoint(path, {}).save({"parameters": torch.zeros(50)})
    path.write_bytes(path.read_bytes()[:keep])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(ArchiveError, match="damaged"):
            Checkpoint(path, {}).load()
        gc.collect()
    assert [str(warning.message) for warning in seen] == []
