"""The estimator."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pyro.contrib.gp.kernels import Kernel
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from pyro_gprn.estimator.checks import check_data, check_settings
from pyro_gprn.estimator.containers import Template, read_inputs, read_outputs
from pyro_gprn.estimator.inference import Inference, find_inference
from pyro_gprn.estimator.prediction import Predictions
from pyro_gprn.estimator.scaling import Scaling, Standardize
from pyro_gprn.estimator.storage import read_regressor, write_regressor
from pyro_gprn.prediction import posterior_predictive
from pyro_gprn.pyro_state import own_randomness
from pyro_gprn.training.loop import Callback
from pyro_gprn.training.selection import N_SCORED, choose_latents


class GPRNRegressor(Predictions, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Gaussian process regression network for arrays: many outputs, fields, holes, calibrated.

    Follows scikit-learn's conventions (``get_params``, ``clone``, ``Pipeline``, ``cross_val_score``). Inputs and
    outputs may be NumPy, torch, pandas or xarray; predictions come back as the kind that ``Y`` was, in its type and
    shape, with its names and coordinates. NaN in Y is a missing output.

    :param n_latents: K, how many latent functions; ``"auto"`` tries 1, 2, 3, 5 and 8 on three refitted folds, at half
        the steps, and takes the smallest that is not beaten by more than a standard error of the held-out log density.
        On eight splits of four simulated fields it took 5 or 8, seven times the best of the five in held-out density or
        within 0.05 of it (docs/training.md has the table).
    :param inference: ``"collapsed"``, the weights integrated out; ``"kronecker"``, the paper's posterior.
    :param effective_outputs: how many independent outputs the D outputs are worth (collapsed only): ``"auto"`` reads
        the number off the Gram matrix and takes twice what it says, which predicted smooth fields, moving fronts and
        noisy fields as well as or better than once; ten times overfits (docs/training.md); a number; or None, D, the
        paper's model.
    :param output_shape: ``(d_1, …, d_M)`` of flat outputs that are a field; by default the shape that Y has.
    :param kernel_f: kernel of the latent functions: words such as ``"matern52"`` or ``"rbf + periodic[0]"`` (one
        length-scale for each input column), or a Pyro kernel. By default ``"rbf"``.
    :param kernel_w: kernel of the weights, likewise.
    :param standardize: True centres and scales inputs and outputs inside, and undoes it in every prediction: all
        outputs by one number if they are a field (``"field"``: several modes, or more than a hundred), otherwise each
        by its own (``"outputs"``, for mixed units). False leaves all as it is.
    :param steps: at most this many training steps; by default 400, or 1000 for ``"kronecker"``.
    :param learning_rate: of Adam; by default 0.08, or 0.03 for ``"kronecker"``.
    :param restarts: random starts; the best bound is kept, all are in ``restart_elbos_``.
    :param seed: of all draws, in training and in prediction; None takes one from torch.
    :param warm_start: whether fitting again, with the same inputs, goes on from where the last fit ended.
    :param checkpoint: a file to which training is written as it goes, and from which fitting again resumes.
    :param device: of torch, such as ``"cuda"``; by default the CPU.
    :param progress: whether to show a progress bar with the bound.

    After fitting:

    - ``model_``, ``guide_``: the Pyro model and its posterior, of standardised data;
    - ``elbo_``, ``losses_``, ``restart_elbos_``: the bound, the negative bound at each step, the bound of each restart;
    - ``n_latents_``, ``effective_outputs_``, ``output_shape_``: what was chosen or read off the data;
    - ``latent_scores_``: with ``n_latents="auto"``, the held-out log density of each number that was tried.

    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> Y = np.sin(6 * X + np.linspace(0, 3, 50))
    >>> r = GPRNRegressor(n_latents=2, steps=50, seed=0, progress=False).fit(X, Y)
    >>> mean, std = r.predict(X[:3] + 0.02, return_std=True)
    >>> mean.shape, std.shape, r.sample(X[:3], 7).shape
    ((3, 50), (3, 50), (7, 3, 50))
    >>> r.score(X + 0.02, np.sin(6 * (X + 0.02) + np.linspace(0, 3, 50))) > 0.99
    True
    """

    def __init__(
        self,
        n_latents: int | Literal["auto"] = 5,
        *,
        inference: str = "collapsed",
        effective_outputs: float | Literal["auto"] | None = "auto",
        output_shape: int | Sequence[int] | None = None,
        kernel_f: Kernel | str | None = None,
        kernel_w: Kernel | str | None = None,
        standardize: Standardize = True,
        steps: int | None = None,
        learning_rate: float | None = None,
        restarts: int = 1,
        seed: int | None = None,
        warm_start: bool = False,
        checkpoint: str | Path | None = None,
        device: str | torch.device | None = None,
        progress: bool = True,
    ) -> None:
        self.n_latents = n_latents
        self.inference = inference
        self.effective_outputs = effective_outputs
        self.output_shape = output_shape
        self.kernel_f = kernel_f
        self.kernel_w = kernel_w
        self.standardize = standardize
        self.steps = steps
        self.learning_rate = learning_rate
        self.restarts = restarts
        self.seed = seed
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.device = device
        self.progress = progress

    def fit(self, X: Any, Y: Any, *, callback: Callback | None = None) -> GPRNRegressor:
        """Fits the network. Ctrl-C ends it early, with a warning, at the best that was reached.

        :param X: inputs, ``(N, P)``.
        :param Y: outputs, ``(N,)`` or ``(N, d_1, …, d_M)``, or flat with ``output_shape`` given; NaN where missing.
        :param callback: called after each step with its number and the (noisy) bound.
        """
        inference = find_inference(self.inference)
        check_settings(self)
        inputs, outputs = read_inputs(X), read_outputs(Y)
        output_shape = check_data(inputs, outputs, self.output_shape)
        template = Template.of(Y, outputs)
        device = torch.device("cpu" if self.device is None else self.device)
        raw = torch.from_numpy(inputs).to(device)
        flat = outputs.reshape(len(outputs), -1).to(device)
        scaling = Scaling.of(raw, flat, self.standardize, len(output_shape))
        scaled_X, scaled_Y = scaling.inputs(raw), scaling.outputs(flat)
        seed = int(torch.randint(2**31, ())) if self.seed is None else self.seed
        trained = self._train(inference, scaled_X, scaled_Y, output_shape, seed, callback)
        validate_data(self, X if hasattr(X, "columns") else inputs, skip_check_array=True)  # names of the columns
        self._scaling, self._template, self._seed = scaling, template, seed
        self.output_shape_ = output_shape
        for name, value in trained.items():
            setattr(self, name, value)
        return self

    def _train(
        self,
        inference: Inference,
        X: Tensor,
        Y: Tensor,
        output_shape: tuple[int, ...],
        seed: int,
        callback: Callback | None,
    ) -> dict[str, Any]:
        """What a fit sets, from standardised data."""
        steps, guide = self.steps, None
        scores: dict[int, float] = {}
        if self.warm_start and hasattr(self, "guide_"):
            model, guide, n_latents = *self._copy_of_last(X, inference), self.n_latents_
        else:
            n_latents = self.n_latents
            if n_latents == "auto":
                n_latents, scores, was_interrupted = self._choose_latents(inference, X, Y, seed)
                steps = 1 if was_interrupted else steps
            model = self._make_model(inference, X, output_shape, n_latents)
        settings: dict[str, Any] = {
            "restarts": self.restarts,
            "seed": self.seed,  # None too: a checkpoint is then resumed whatever the seed was
            "progress": self.progress,
            "callback": callback,
        }
        settings |= {"guide": guide, "checkpoint": self.checkpoint}
        fit = inference.train(model, Y.reshape(-1, *output_shape), steps, self.learning_rate, **settings)
        return {
            "model_": model,
            "guide_": fit.guide,
            "elbo_": fit.bound,
            "losses_": fit.losses.numpy(),
            "restart_elbos_": np.array([run["bound"] for run in fit.restarts]),
            "_restarts": fit.restarts,
            "n_latents_": n_latents,
            "effective_outputs_": getattr(model, "effective_outputs", None),
            "latent_scores_": scores,
            "_outputs": Y,
        }

    def _make_model(self, inference: Inference, X: Tensor, output_shape: tuple[int, ...], n_latents: int) -> Any:
        kernel_f, kernel_w = copy.deepcopy((self.kernel_f, self.kernel_w))  # a fit changes them
        return inference.make_model(X, output_shape, n_latents, kernel_f, kernel_w, self.effective_outputs)

    def _copy_of_last(self, X: Tensor, inference: Inference) -> tuple[Any, Any]:
        """Model and guide of the last fit, to go on from without touching them."""
        if not isinstance(self.model_, inference.model):
            raise ValueError(
                f"warm_start cannot go on with inference={self.inference!r} from {type(self.model_).__name__}"
            )
        if self.model_.X.shape != X.shape or not torch.equal(self.model_.X, X):
            raise ValueError(
                f"warm_start goes on with the inputs of the last fit, {tuple(self.model_.X.shape)}; these"
                f" ({tuple(X.shape)}) are others: set warm_start=False to begin again"
            )
        return copy.deepcopy((self.model_, self.guide_))

    def _choose_latents(
        self, inference: Inference, X: Tensor, Y: Tensor, seed: int
    ) -> tuple[int, dict[int, float], bool]:
        generator = torch.Generator().manual_seed(seed)
        scored = torch.randperm(Y.shape[1], generator=generator)[:N_SCORED].sort().values
        steps = (inference.steps if self.steps is None else self.steps) // 2 or 1

        def score(X_in: Tensor, Y_in: Tensor, X_out: Tensor, Y_out: Tensor, n_latents: int) -> Tensor:
            model = self._make_model(inference, X_in, (Y.shape[1],), n_latents)
            fit = inference.train(model, Y_in, steps, self.learning_rate, seed=seed, progress=False)
            with own_randomness(seed):
                predictive = posterior_predictive(model, fit.guide, X_out, Y_in)
                return predictive.log_density(Y_out[:, scored], scored.tolist())

        return choose_latents(X, Y, score, seed=seed, progress=self.progress)

    def save(self, path: str | Path, *, with_data: bool = True) -> None:
        """Writes the fitted estimator to one file, which holds numbers and words but no code.

        :param path: the file; replaced if it is there.
        :param with_data: whether the training outputs go into the file. Predictions need them: without, :meth:`load`
            has to be given the same ``Y`` again, which is checked.
        """
        check_is_fitted(self)
        write_regressor(path, self, with_data)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        Y: Any = None,
        kernel_f: Kernel | None = None,
        kernel_w: Kernel | None = None,
    ) -> GPRNRegressor:
        """A fitted estimator from a file, whose predictions are those of the one that was saved, to the bit.

        :param path: the file.
        :param Y: the training outputs, if the file was saved without.
        :param kernel_f: a kernel of the class that was fitted, if that was none that a file can describe.
        :param kernel_w: likewise.
        """
        return read_regressor(cls, path, Y, {"kernel_f": kernel_f, "kernel_w": kernel_w})
