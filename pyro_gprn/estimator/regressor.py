"""The estimator."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pyro.contrib.gp.kernels import Kernel
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from pyro_gprn.archive import reading
from pyro_gprn.collapsed.independent import fit_independent, read_effective_outputs
from pyro_gprn.collapsed.kernel_choice import KernelChoice, choose_kernel, choose_own_kernels
from pyro_gprn.collapsed.starts import MANY_ROWS, check_starts
from pyro_gprn.collapsed.subset import Subset
from pyro_gprn.estimator.base import Estimator
from pyro_gprn.estimator.checks import check_settings
from pyro_gprn.estimator.data import TrainingData
from pyro_gprn.estimator.file import read_fit, write_fit
from pyro_gprn.estimator.fitted import FittedNetwork
from pyro_gprn.estimator.inference import Inference, find_inference, inference_of
from pyro_gprn.estimator.scaling import Standardize
from pyro_gprn.estimator.selection import Recipe, Selected, Selection
from pyro_gprn.network.base import Network
from pyro_gprn.outputs.compressed import CompressedStatistics, TooManyPatternsError
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import Outputs
from pyro_gprn.pyro_state import few_threads
from pyro_gprn.training.checkpoint import Checkpoint
from pyro_gprn.training.fit import Fit, TrainingSettings, fit_identity
from pyro_gprn.training.interruption import noticed_interrupts
from pyro_gprn.training.loop import Callback
from pyro_gprn.training.selection import SCORING

#: Up to so many rows, from where on an exact fit would compare neither starts nor kernels, a network is exact unless
#: inducing inputs are asked for; above it has so many of these.
MOST_EXACT, N_INDUCING = MANY_ROWS, 100
#: Up to so many rows it is exact, too, if outputs have too many patterns of holes for inducing inputs.
MOST_EXACT_WITH_HOLES = 4000
#: How many functions a network has while other things are chosen, if their number is to be chosen too.
N_LATENTS = 5


class GPRNRegressor(Estimator):
    """Gaussian process regression network for arrays: for many outputs or fields, also with missing numbers.

    Follows scikit-learn's conventions (``get_params``, ``clone``, ``Pipeline``, ``cross_val_score``). Inputs and
    outputs may be NumPy, torch, pandas or xarray; predictions come back as the kind that ``Y`` was, in its type and
    shape, with its names and coordinates. NaN in Y is a missing output. A prediction at the input of a training row
    tells the row's missing outputs from its other outputs, too (if there are 20 to 300).

    :param n_latents: K, how many latent functions; ``"auto"`` tries 1, 2, 3, 5 and 8 on refitted folds and takes the
        smallest that is not beaten by more than a standard error of the held-out score.
    :param inference: ``"collapsed"`` integrates the weights out. The others are posteriors of functions and weights:
        ``"kronecker"`` is the paper's, ``"mean-field"`` has a Gaussian for each function and each weight (Wilson et al.
        2012; Nguyen and Bonilla 2013), and ``"mixture"`` is a mixture of two isotropic Gaussians (Gershman et al. 2012;
        its bound prefers kernels that are rougher than the data). ``"coregionalised"`` has weights that are the same
        at all inputs, and its functions integrated out: exact, for few outputs (N·D up to some thousands).
    :param effective_outputs: how many independent outputs the D outputs are worth (collapsed only). ``"auto"`` reads
        a number off the Gram matrix and takes twice that: on smooth fields, moving fronts and noisy fields, twice
        predicted as well as once or better, and ten times overfitted (docs/training.md). Where each output has a kernel
        of its own, what is read off is taken as it is. A number is taken as it is. None stands for D, the paper's
        model.
    :param output_scales: True gives every output a scale of its own, in closed form after the fit (collapsed only), so
        that intervals are right for each output and not on average only. Predictions are then Student-t; the mean is
        the same. False is one scale for all outputs.
    :param output_shape: ``(d_1, …, d_M)`` of a field whose outputs come flat, ``(N, D)``; by default the shape of Y.
    :param kernel_f: kernel of the latent functions: words such as ``"matern52"`` or ``"rbf + periodic[0]"`` (one
        length-scale for each input column), or a Pyro kernel. ``"auto"`` takes the one out of ``"rbf"``,
        ``"matern52"``, ``"matern32"``, ``"rational_quadratic"``, ``"product_matern52"`` and ``"product_matern32"`` that
        has the highest evidence for independent GPs. By default it is ``"rbf"``, also where the weights have another
        one: what is rough is better left to them. (Where the weights are constant the functions have theirs.)
    :param kernel_w: kernel of the weights, likewise. By default ``"auto"`` for ``"collapsed"``, otherwise ``"rbf"``.
    :param own_kernels: True gives every output a kernel of the weights and a noise of its own (collapsed only), for few
        outputs that differ in smoothness or noise; a fit takes about D times as long. False lets all share one.
        ``"auto"`` asks, for at most 20 outputs, whether the evidence of independent GPs with a kernel each is higher by
        more than their further hyperparameters cost; a Pyro kernel is shared then.
    :param inducing: how many inducing inputs stand for all rows (collapsed only), for thousands of rows and more
        (docs/many-rows.md). A fit then costs in proportion to N, and what is to be chosen is chosen on 300 of the rows.
        ``"auto"`` takes 100 above N = 1,000, where outputs need not have kernels of their own, and none below. None is
        the exact network, whose cost grows with N³.
    :param starts: from where training starts (collapsed only): names out of ``"independent"``, ``"functions"``,
        ``"rough functions"`` and ``"constant functions"``; None is all of them, or the first alone from N = 1,000 on
        (where ``"auto"`` takes the first kernel, too).
    :param selection: True lets held-out entries choose what is left open (collapsed only): between the starts,
        independent GPs and a linear model of coregionalisation, between the two kernels with the highest evidence, and
        between two for the functions, ``"rbf"`` and ``"rational_quadratic"``.
        Where up to 20 outputs have holes, ``"coregionalised"`` is a candidate, too.
        Each candidate is fitted to five folds (three above N = 100), those far behind to fewer; rows are held out
        and, where Y has holes, entries that look like these. False takes no folds: starts are raced for some steps, and
        the one with the best bound is trained to the end.
    :param standardize: True centres and scales inputs and outputs inside, and undoes it in every prediction. Outputs
        are scaled all by one number if they are a field (``"field"``), each by its own if they are a table whose
        columns may have units of their own (``"outputs"``). They are a table if they are the columns of a pandas
        frame; if they are at most twenty in one mode; or if their spreads cannot be those of a field: the largest
        more than a thousand times the median, or neighbours that differ threefold on average. Otherwise, and always
        with several modes, they are a field. False leaves inputs and outputs as they are.
    :param steps: at most this many training steps; fewer when the bound has settled. By default 800 (and where there
        is hardly any noise, at most half as many of L-BFGS after them), for ``"mean-field"`` 300 (a step is a whole
        sweep of exact updates), for ``"coregionalised"`` 200 (of L-BFGS), and for the other two 1000.
    :param learning_rate: Adam's learning rate; by default 0.08, for ``"mean-field"`` 0.05, for ``"kronecker"`` and
        ``"mixture"`` 0.03.
    :param restarts: how many random starts; the one with the best bound is kept, and ``restart_elbos_`` has all bounds.
    :param seed: seed of all draws, in training and in prediction. The same seed gives the same results, :meth:`sample`
        included. None takes a seed from torch; then :meth:`sample` gives other draws at every call.
    :param warm_start: whether fitting again, with the same inputs, goes on from where the last fit ended.
    :param checkpoint: a file to which the state of training is written every so often; a fit that was stopped goes on
        from it when it is started again. (The training of ``"coregionalised"``, which takes seconds, begins again.)
    :param device: torch's device, such as ``"cuda"``; by default the CPU.
    :param progress: whether to show a progress bar with the bound.

    After fitting:

    - ``fitted_``: the record of the fit, from which all that follows and every prediction comes;
    - ``model_``, ``guide_``: the Pyro model and its posterior, of standardised data;
    - ``elbo_``, ``losses_``, ``restart_elbos_``: the bound, the negative bound at each step, the bound of each restart;
    - ``n_latents_``, ``effective_outputs_``, ``output_shape_``: what was chosen or read off the data;
    - ``selection_``: of each candidate that was tried its "name", held-out "score" (the mean continuous ranked
      probability score on the standardised scale, lower is better), the "ratio" to the score of the chosen one on the
      same rows, on how many "folds" and in how many "seconds", and whether it "is_chosen"; the best first;
    - ``widening_``: what the scales of the outputs (``output_scales=True``) are multiplied by, so that 95 % intervals
      hold about as many of the held-out numbers: ``most`` for the outputs that vary most over the training rows,
      ``others`` for the others, and in between where the standard deviation of an output is between the two
      ``spreads`` (in the model's units); ``holes`` is what missing entries of training rows ask for; ``places`` tells
      a further factor, for how far from its output's mean a prediction is;
    - ``latent_scores_``: with ``n_latents="auto"``, the held-out score of each number that was tried;
    - ``kernel_evidence_``: with ``kernel_w="auto"``, the log evidence of each kernel that was tried, highest first;
    - ``own_kernels_``: True if every output has a kernel of its own;
    - ``starts_``: of each start that was tried, its "name", and the "bound" that it reached after some "steps" and
      "seconds".

    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> Y = np.sin(6 * X + np.linspace(0, 3, 50))
    >>> r = GPRNRegressor(n_latents=2, steps=50, seed=0, progress=False).fit(X, Y)
    >>> mean, std = r.predict(X[:3] + 0.02, return_std=True)
    >>> mean.shape, std.shape, r.sample(X[:3], 7).shape
    ((3, 50), (3, 50), (7, 3, 50))
    >>> lower, upper = r.predict(X[:3] + 0.02, quantiles=(0.05, 0.95))
    >>> lower.shape, bool((lower < mean).all() and (mean < upper).all())
    ((3, 50), True)
    >>> r.score(X + 0.02, np.sin(6 * (X + 0.02) + np.linspace(0, 3, 50))) > 0.99
    True
    """

    fitted_: FittedNetwork

    def __init__(
        self,
        n_latents: int | Literal["auto"] = 5,
        *,
        inference: str = "collapsed",
        effective_outputs: float | Literal["auto"] | None = "auto",
        output_scales: bool = True,
        output_shape: int | Sequence[int] | None = None,
        kernel_f: Kernel | str | None = None,
        kernel_w: Kernel | str | None = None,
        own_kernels: bool | Literal["auto"] = "auto",
        inducing: int | Literal["auto"] | None = "auto",
        starts: Sequence[str] | None = None,
        selection: bool = True,
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
        self.output_scales = output_scales
        self.output_shape = output_shape
        self.kernel_f = kernel_f
        self.kernel_w = kernel_w
        self.own_kernels = own_kernels
        self.inducing = inducing
        self.starts = starts
        self.selection = selection
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
        """Fits the network. Ctrl-C ends the fit early, with a warning, at the best that was reached.

        :param X: inputs, ``(N, P)``.
        :param Y: outputs, ``(N,)`` or ``(N, d_1, …, d_M)``, or flat with ``output_shape`` given; NaN where missing. It
            is referred to, not copied, and predictions read it again: do not change it as long as you predict.
        :param callback: called after each step with its number and the (noisy) bound.
        """
        inference = find_inference(self.inference)
        check_settings(self)
        with noticed_interrupts():
            fitted = self._fit(
                X, Y, lambda data, seed: self._train(inference, data, seed, callback), lazily=inference.is_collapsed
            )
        self._set_fitted(fitted)
        return self

    def _train(self, inference: Inference, data: TrainingData, seed: int, callback: Callback | None) -> FittedNetwork:
        if self.warm_start and hasattr(self, "fitted_"):
            inference = self._inference_of_last(inference)
            model, guide = self._copy_of_last(data.X, inference)
            selected = _selected_in(self.fitted_)
        else:
            has_inducing = isinstance(data.known, CompressedStatistics)
            looked_at = data.at_rows(Subset.of(data.known)) if has_inducing else data
            selected = self._select(inference, looked_at)
            inference = _inference_for(selected.recipe, inference)
            shape, inducing = data.known.source.shape[1:], self._n_inducing(len(data.X)) if has_inducing else None
            model, guide = self._make_model(inference, selected.recipe, data.X, shape, inducing), None
            self._count_outputs(inference, selected.recipe, model, looked_at.X, looked_at.known)
        extra = _starts_of(inference, selected.recipe)
        if inference.has_checkpoints:
            extra |= {"checkpoint": self.checkpoint, "after": selected.identity}
        fit = inference.train(
            model,
            data.known,
            self.steps,
            self.learning_rate,
            guide=guide,
            restarts=self.restarts,
            seed=self.seed,  # None too: a checkpoint is then resumed whatever the seed was
            progress=self.progress,
            callback=callback,
            **extra,
        )
        return FittedNetwork.of(
            data,
            model=model,
            guide=fit.guide,
            kernels=copy.deepcopy({"kernel_f": self.kernel_f, "kernel_w": self.kernel_w}),
            seed=seed,
            runs=fit.restarts,
            bound=fit.bound,
            losses=fit.losses,
            selection=selected.report,
            widening=selected.widening,
            latent_scores=selected.latent_scores,
            kernel_evidence=selected.recipe.kernel.evidence,
            training_identity=fit.identity,
            scales=bool(self.output_scales),
        )

    def _n_inducing(self, n_rows: int) -> int | None:
        """How many inducing inputs a network of so many rows has; None if it is exact."""
        if self.inducing != "auto":
            return self.inducing
        is_exact = n_rows <= MOST_EXACT or self._wants_own_kernels or not find_inference(self.inference).is_collapsed
        return None if is_exact else N_INDUCING

    @property
    def _wants_own_kernels(self) -> bool:
        return self.own_kernels != "auto" and bool(self.own_kernels)

    def _read_data(self, X: Any, Y: Any, *, many_rows: bool = False, lazily: bool = False) -> TrainingData:
        if not hasattr(X, "__len__") or self._n_inducing(len(X)) is None:
            return super()._read_data(X, Y, lazily=lazily)
        try:
            return super()._read_data(X, Y, many_rows=True)
        except TooManyPatternsError:
            if self.inducing != "auto" or len(X) > MOST_EXACT_WITH_HOLES:
                raise
            return super()._read_data(X, Y, lazily=lazily)

    def _set_fitted(self, fitted: FittedNetwork) -> None:
        """Sets the attributes that the class documents for after fitting."""
        self.fitted_ = fitted
        self.model_, self.guide_ = fitted.model, fitted.guide
        self.elbo_, self.losses_ = fitted.bound, fitted.losses.numpy()
        self.restart_elbos_ = np.array([run["bound"] for run in fitted.runs])
        self.n_latents_, self.output_shape_ = fitted.model.n_latents, fitted.output_shape
        self.effective_outputs_ = getattr(fitted.model, "effective_outputs", None)
        self.own_kernels_ = getattr(fitted.model, "own_kernels", False)
        self.latent_scores_, self.kernel_evidence_ = fitted.latent_scores, fitted.kernel_evidence
        self.selection_, self.widening_ = fitted.selection, fitted.widening
        self.starts_ = fitted.runs[fitted.best_run].get("starts", [])

    def _choose_kernel(self, inference: Inference, data: TrainingData) -> KernelChoice:
        """The kernel with the highest evidence, if one is to be chosen by that; and whether each output has its own."""
        is_chosen = _is_auto(self.kernel_w) or (self.kernel_w is None and inference.is_collapsed)
        if inference.has_constant_weights:
            is_chosen = self.kernel_f is None or _is_auto(self.kernel_f)
        may_own = self.own_kernels == "auto" and inference.is_collapsed and not data.is_part
        own = self._wants_own_kernels and inference.is_collapsed
        if may_own and is_chosen:
            return choose_own_kernels(data.X, data.known)
        if may_own and isinstance(self.kernel_w, str):
            own = choose_own_kernels(data.X, data.known, [self.kernel_w]).own_kernels
        if is_chosen or _is_auto(self.kernel_f):
            chosen = choose_kernel(data.X, data.known, own_kernels=own)
            return chosen if is_chosen else chosen._replace(states={})
        return KernelChoice(own_kernels=own)

    def _make_model(
        self,
        inference: Inference,
        recipe: Recipe,
        X: Tensor,
        output_shape: Sequence[int],
        inducing: int | None = None,
    ) -> Network:
        """A new model, its kernels those of the recipe where they were to be chosen."""
        chosen = recipe.kernel
        kernel_f, kernel_w = copy.deepcopy((self.kernel_f, self.kernel_w))  # a fit changes them
        if inference.has_constant_weights and kernel_f is None:
            kernel_f = chosen.name if kernel_w is None or _is_auto(kernel_w) else kernel_w
        if _is_auto(kernel_w) or (kernel_w is None and inference.is_collapsed):
            kernel_w = chosen.name
            if kernel_f is None and recipe.has_constant_weights:  # the functions carry all that varies
                kernel_f = chosen.name
        if kernel_f is None:
            kernel_f = recipe.functions
        if _is_auto(kernel_f):
            kernel_f = chosen.name
        kernel_f = "constant" if recipe.has_constant_functions else kernel_f
        kernel_w = "constant" if recipe.has_constant_weights else kernel_w
        settings = self.effective_outputs, chosen.own_kernels, inducing
        model = inference.make_model(X, tuple(output_shape), recipe.n_latents, kernel_f, kernel_w, *settings)
        if recipe.is_fitted:
            model.load_state_dict(chosen.states[str(chosen.name)], strict=False)
        return model

    def _count_outputs(
        self, inference: Inference, recipe: Recipe, model: Network, X: Tensor, known: OutputStatistics
    ) -> None:
        """Reads ``effective_outputs="auto"`` for constant weights by varying ones: their own GPs cannot tell."""
        if not recipe.has_constant_weights or self.effective_outputs != "auto":
            return
        varying = replace(recipe, has_constant_weights=False, n_latents=1)
        gps: Any = self._make_model(inference, varying, X, model.output_shape)
        if not varying.kernel.is_refitted:
            fit_independent(gps, known, from_here=varying.is_fitted)
        model.effective_outputs = read_effective_outputs(gps, known)

    def _inference_of_last(self, inference: Inference) -> Inference:
        """The inference of the last fit, where what was held out chose it; otherwise the one that was asked for."""
        last = inference_of(self.guide_)
        return last if inference.is_collapsed and last.has_constant_weights else inference

    def _copy_of_last(self, X: Tensor, inference: Inference) -> tuple[Network, Any]:
        """Copies of the last fit's model and guide, to go on from."""
        if not isinstance(self.model_, inference.model) or not isinstance(self.guide_, inference.guide):
            raise ValueError(
                f"warm_start cannot go on with inference={self.inference!r} from a {type(self.model_).__name__} and its"
                f" {type(self.guide_).__name__}"
            )
        if self.model_.X.shape != X.shape or not torch.equal(self.model_.X, X):
            raise ValueError(
                f"warm_start goes on with the inputs of the last fit, {tuple(self.model_.X.shape)}; these"
                f" ({tuple(X.shape)}) are others: set warm_start=False to begin again"
            )
        return copy.deepcopy((self.model_, self.guide_))

    def _select(self, inference: Inference, data: TrainingData) -> Selected:
        """What the network is made of: as it was given, and where that leaves a choice, what predicts best."""
        any_latents = self.n_latents == "auto"
        n_latents = min(N_LATENTS, len(data.X)) if self.n_latents == "auto" else self.n_latents
        given = None if self.starts is None else tuple(self.starts)
        kernel = self._choose_kernel(inference, data)
        recipe = Recipe(kernel, n_latents, given, is_coregionalised=inference.has_constant_weights)
        starts: list[str] = []
        if self.selection and inference.is_collapsed:
            starts = check_starts(self.starts, len(data.X))
        any_kernel = bool(starts) and recipe.kernel.name is not None and len(data.X) < MANY_ROWS
        if len(starts) < 2 and not any_latents and not any_kernel:
            return Selected(recipe)
        steps = inference.steps if self.steps is None else self.steps
        rate = inference.learning_rate if self.learning_rate is None else self.learning_rate
        seed = 0 if self.seed is None else self.seed  # the same folds again when a search is resumed

        def make(recipe: Recipe, X: Tensor, output_shape: Sequence[int]) -> Network:
            return self._make_model(_inference_for(recipe, inference), recipe, X, output_shape)

        def train(model: Network, known: OutputStatistics, recipe: Recipe, steps: int) -> Fit:
            self._count_outputs(inference, recipe, model, model.X, known)
            means = _inference_for(recipe, inference)
            return means.train(model, known, steps, rate, seed=seed, progress=False, **_starts_of(means, recipe))

        file = None
        if self.checkpoint is not None:
            starts_given = None if given is None else list(given)  # a file has lists, no tuples
            search = {"search": "selection", "scoring": SCORING}
            search |= {"effective_outputs": self.effective_outputs, "starts": starts_given}
            network = make(replace(recipe, n_latents=1), data.X, data.known.source.shape[1:])
            settings = TrainingSettings(steps, rate or 0.0, seed=self.seed)
            file = Checkpoint(self.checkpoint, fit_identity(network, data.known, settings) | search)
        selection = Selection(
            data.X,
            data.known,
            make,
            train,
            steps=steps,
            has_scales=bool(self.output_scales),
            seed=seed,
            progress=self.progress,
            file=file,
        )
        limits = self.starts is None and len(starts) > 1
        with few_threads(len(data.X)):  # what folds predict, too, is made of small matrices
            return selection.choose(
                recipe,
                starts,
                with_limits=limits,
                with_coregionalised=not data.is_part,  # they are for all rows together
                any_kernel=any_kernel,
                any_functions=bool(starts) and self.kernel_f is None,
                any_latents=any_latents,
            )

    def output_correlation(self, X: Any, outputs: Outputs = None) -> np.ndarray:
        """The correlation between outputs at new inputs, ``(N*, b, b)`` over the b selected outputs, flattened.

        :param X: new inputs, ``(N*, P)``.
        :param outputs: a selection of outputs, as for :class:`~pyro_gprn.PosteriorPredictive`. Without one there are D²
            numbers for each input.
        """
        return self.fitted_.correlation(self._read_new(X), outputs).cpu().numpy()

    def save(self, path: str | Path, *, with_data: bool | None = None) -> None:
        """Writes the fitted estimator to one file, which holds numbers and words but no code.

        :param path: the file; it is replaced if it exists.
        :param with_data: whether the training outputs go into the file. Predictions need them. If they are not in the
            file, :meth:`load` must be given the same ``Y`` again, and checks that it is the same. None lets them go
            into the file if they are in memory. Of outputs that are not in memory the file has their zarr store's place
            and checksums of some chunks, by which :meth:`load` finds them and sees whether they are the same.
        """
        check_is_fitted(self)
        names = list(getattr(self, "feature_names_in_", []))
        write_fit(path, self.fitted_, self.get_params(deep=False), names, with_data=with_data)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        Y: Any = None,
        kernel_f: Kernel | None = None,
        kernel_w: Kernel | None = None,
        device: str | torch.device | None = None,
    ) -> GPRNRegressor:
        """Reads a fitted estimator from a file. Its predictions are those of the one that was saved, to the bit.

        :param path: the file.
        :param Y: the training outputs, if the file was saved without them, or their store has moved.
        :param kernel_f: a kernel of the fitted one's class, if that is a class that a file cannot describe.
        :param kernel_w: likewise.
        :param device: the device to put it on; by default the one it was fitted on, or the CPU if that does not exist.
        """
        fitted, settings, names = read_fit(path, Y, {"kernel_f": kernel_f, "kernel_w": kernel_w}, device)
        with reading(path):
            regressor = cls(**settings)
        regressor.n_features_in_ = fitted.model.X.shape[1]
        if names:
            regressor.feature_names_in_ = np.array(names, dtype=object)
        regressor._set_fitted(fitted)
        return regressor


def _inference_for(recipe: Recipe, asked_for: Inference) -> Inference:
    """The method of inference that a recipe is for: the one that was asked for, unless folds found another better."""
    return find_inference("coregionalised") if recipe.is_coregionalised else asked_for


def _starts_of(inference: Inference, recipe: Recipe) -> dict[str, Any]:
    """The settings that say from where training starts, where there are such."""
    if not inference.is_collapsed:
        return {}
    at_independent = recipe.is_fitted and recipe.kernel.is_refitted
    return {"starts": recipe.starts, "from_here": recipe.is_fitted, "at_independent": at_independent}


def _selected_in(last: FittedNetwork) -> Selected:
    """What the last fit had chosen, and why: a fit that goes on from it is made of the same."""
    recipe = Recipe(KernelChoice(evidence=last.kernel_evidence), last.model.n_latents)
    return Selected(recipe, last.selection, last.widening, last.latent_scores, last.training_identity)


def _is_auto(kernel: Kernel | str | None) -> bool:
    return isinstance(kernel, str) and kernel == "auto"
