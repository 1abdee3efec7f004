"""Training from several random starts, of which the best is kept; all of it can be resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from pyro_gprn.archive import reading
from pyro_gprn.training.checkpoint import Checkpoint
from pyro_gprn.training.interruption import Interruption
from pyro_gprn.training.loop import Callback, Trainee, TrainingRun, copy_state

AnyTrainee = TypeVar("AnyTrainee", bound=Trainee)


class Restarts(Generic[AnyTrainee]):
    """Runs of training that share one preparation and differ in their random start.

    :param model: the model, which in the end has the best run's hyperparameters.
    :param prepare: brings the model's parameters to where every run begins, and returns what a checkpoint must remember
        of this besides the parameters.
    :param restore: takes what ``prepare`` returned, in this process or in an earlier one that wrote the checkpoint, and
        sets all of the model that is no parameter.
    :param make: makes a new trainee of the model, its start drawn at random.
    :param generator: source of all random numbers.
    :param file: the checkpoint to save to and to resume from, if any.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        prepare: Callable[[], dict[str, Any]],
        restore: Callable[[dict[str, Any]], None],
        make: Callable[[], AnyTrainee],
        generator: torch.Generator,
        file: Checkpoint | None = None,
    ) -> None:
        self._model, self._make, self._generator, self._file = model, make, generator, file
        saved = None if file is None else file.load()
        self._resumed: dict[str, Any] | None = None
        if file is None or saved is None:
            self.prepared = prepare()
            self._begin, self.finished = copy_state(model), []
        else:
            with reading(file.path):
                self.prepared, self._begin, self.finished = saved["prepared"], saved["begin"], saved["finished"]
                self._resumed = saved["run"]
                generator.set_state(saved["random"])
        restore(self.prepared)

    def train(
        self,
        restarts: int,
        steps: int,
        interruption: Interruption,
        *,
        progress: bool,
        callback: Callback | None = None,
    ) -> tuple[AnyTrainee, dict[str, Any]]:
        """Trains all runs; returns a trainee in the best run's state, and that run's entry in ``finished``."""
        trainee = None
        while len(self.finished) < restarts and not (self.finished and interruption.is_requested):
            trainee = self._train_one(steps, interruption, progress, callback)
        best = max(self.finished, key=lambda run: run["bound"])
        trainee = self._make() if trainee is None else trainee
        trainee.load_parameters(best)
        return trainee, best

    def _train_one(
        self, steps: int, interruption: Interruption, progress: bool, callback: Callback | None
    ) -> AnyTrainee:
        random_now = self._generator.get_state()
        random_start = random_now if self._resumed is None else self._resumed["random_start"]
        self._generator.set_state(random_start)  # so that the trainee is the one that was saved
        self._model.load_state_dict(self._begin)
        trainee = self._make()
        run = TrainingRun(trainee, steps)
        if self._resumed is not None and self._file is not None:
            with reading(self._file.path):
                run.load_state(self._resumed)
            self._generator.set_state(random_now)
            self._resumed = None
        outcome = run.train(
            interruption,
            progress=progress,
            callback=callback,
            save=lambda: self._save({"random_start": random_start, **run.state()}),
        )
        self.finished.append(
            {
                "start": outcome.start,
                "bound": outcome.bound,
                "losses": torch.tensor(outcome.losses, dtype=torch.float64, device="cpu"),
                **trainee.parameters(),
                "starts": list(trainee.starts),
            }
        )
        if not interruption.is_requested:
            self._save(None)
        return trainee

    def _save(self, run: dict[str, Any] | None) -> None:
        if self._file is not None:
            self._file.save(
                {
                    "prepared": self.prepared,
                    "begin": self._begin,
                    "finished": self.finished,
                    "random": self._generator.get_state(),
                    "run": run,
                }
            )
