"""Reduced outputs and the higher-order GP: they equal dense algebra, scikit-learn and BoTorch."""

import pickle
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.decomposition import PCA, KernelPCA
from sklearn.manifold import Isomap

from pyro_gprn.baselines import HOGP, ReducedGP
from pyro_gprn.baselines.component_gps import LEAST_LENGTH, ComponentGPs, fit_components
from pyro_gprn.baselines.hogp import check_memory
from pyro_gprn.baselines.reducers import GraphReduction, KernelReduction, KernelRidge, LinearReduction
from pyro_gprn.outputs.source import ArrayOutputs

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, size=(14, 2))
X_NEW = RNG.uniform(-1, 1, size=(5, 2))


def field(n_outputs, X=X):
    places = np.linspace(0, 3, n_outputs)
    return np.sin(2 * X[:, :1] + places) + X[:, 1:] * np.cos(places) ** 2


def gram_of(Y):
    Y = torch.from_numpy(Y)
    return Y @ Y.mT


def up_to_signs(scores, expected, **tolerance):
    signs = np.sign((scores * expected).sum(0))
    np.testing.assert_allclose(scores * signs, expected, **tolerance)


def test_pca_with_all_components_and_one_kernel_is_independent_gps():
    Y = np.random.default_rng(1).normal(size=(14, 4)) + 3.0
    r = ReducedGP(standardize=False, kernel="rbf", steps=1).fit(X, Y)
    fitted = r.fitted_
    assert r.n_components_ == 4
    variance, noise = 1.7, 0.05
    kernel = fitted.gps.kernel  # the same hyperparameters for all components, in the units of each
    kernel.base_kernel.lengthscale = torch.tensor([[0.7, 1.3]], dtype=torch.float64).expand(4, 1, 2)
    kernel.outputscale = variance / fitted.scale.square()
    gps = ComponentGPs(fitted.gps.X, fitted.gps.scores, kernel, noise / fitted.scale.square(), fitted.gps.evidence)
    object.__setattr__(fitted, "gps", gps)
    mean, std = r.predict(X_NEW, return_std=True)

    def covariance(A, B):
        return variance * np.exp(-0.5 * (((A[:, None] - B) / [0.7, 1.3]) ** 2).sum(-1))

    K, cross = covariance(X, X) + noise * np.eye(14), covariance(X_NEW, X)
    centre = Y.mean(0)
    np.testing.assert_allclose(mean, centre + cross @ np.linalg.solve(K, Y - centre), rtol=1e-8)
    expected = variance + noise - np.einsum("ij,ji->i", cross, np.linalg.solve(K, cross.T))
    np.testing.assert_allclose(std**2, np.repeat(expected[:, None], 4, 1), rtol=1e-8)
    draws = r.sample(X_NEW, 20_000, seed=0)
    together = covariance(X_NEW, X_NEW) - cross @ np.linalg.solve(K, cross.T) + noise * np.eye(5)
    np.testing.assert_allclose(np.cov(draws[..., 2].T), together, atol=0.06)


def test_components_are_those_of_scikit_learn():
    Y = field(30)
    up_to_signs(LinearReduction(gram_of(Y), 3).scores.numpy(), PCA(3).fit_transform(Y), atol=1e-9)
    distances = ((Y[:, None] - Y) ** 2).sum(-1)
    gamma = 1 / distances[~np.eye(14, dtype=bool)].mean()
    expected = KernelPCA(3, kernel="rbf", gamma=gamma).fit_transform(Y)
    up_to_signs(KernelReduction(gram_of(Y), 3).scores.numpy(), expected, atol=1e-9)
    expected = Isomap(n_neighbors=5, n_components=2, eigen_solver="dense").fit_transform(Y)
    up_to_signs(GraphReduction(gram_of(Y), 2).scores.numpy(), expected, atol=1e-7)


def test_as_few_components_are_taken_as_explain_a_share_of_the_variance():
    Y = field(30)
    for share in (0.6, 0.95, 0.999):
        expected = PCA(share).fit(Y).n_components_
        assert LinearReduction(gram_of(Y), share).scores.shape == (14, expected)
    assert ReducedGP(n_components=0.95, steps=1).fit(X, Y).n_components_ < 5


def test_the_way_back_from_kernel_pca_is_that_of_scikit_learn():
    Y = field(30)
    Y = Y - Y.mean(0)
    theirs = KernelPCA(3, kernel="rbf", gamma=0.1, alpha=1e-3, fit_inverse_transform=True).fit(Y)
    scores = torch.from_numpy(theirs.transform(Y[:4] + 0.1))
    ours = KernelRidge(torch.from_numpy(theirs.transform(Y)), 0.1, 1e-3).coefficients(scores) @ torch.from_numpy(Y)
    np.testing.assert_allclose(ours, theirs.inverse_transform(scores), atol=1e-8)


def test_errors_of_kernel_ridge_are_those_of_rows_left_out():
    scores, Y = torch.randn(9, 2, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    errors = KernelRidge(scores, 0.3, 0.1).residual @ Y
    others = torch.arange(1, 9)
    left_out = KernelRidge(scores[others], 0.3, 0.1).coefficients(scores[:1]) @ Y[others]
    torch.testing.assert_close(errors[:1], Y[:1] - left_out)


@pytest.mark.parametrize("reduction", [LinearReduction, KernelReduction, GraphReduction])
def test_coefficients_give_back_the_mean_of_outputs_that_are_shifted(reduction):
    Y = field(30)
    reduced, shifted = reduction(gram_of(Y), 2), reduction(gram_of(Y + 5.0), 2)
    for each in (reduced, shifted):
        sums = each.coefficients(each.scores[:3] + 0.1).sum(-1)
        torch.testing.assert_close(sums, torch.ones(3, dtype=torch.float64))
        torch.testing.assert_close(each.residual.sum(1), torch.zeros(14, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize(("reducer", "n_components"), [("pca", 2), ("kpca", 2), ("isomap", 1)])
def test_what_the_reduction_leaves_out_is_in_the_variance(reducer, n_components):
    X = np.linspace(-1, 1, 60)[:, None]
    noise = 0.3 * np.random.default_rng(2).normal(size=(60, 40))
    Y = np.sin(2 * X + np.linspace(0, 1, 40)) + noise
    fitted = ReducedGP(reducer, n_components, kernel="rbf", seed=0).fit(X[::2], Y[::2])
    mean, std = fitted.predict(X[1::2], return_std=True)
    assert np.sqrt(np.mean(((Y[1::2] - mean) / std) ** 2)) == pytest.approx(1.0, abs=0.15)


def test_the_variance_of_other_reducers_is_that_of_their_draws():
    fitted = ReducedGP("isomap", 2, kernel="rbf", seed=0, steps=5).fit(X, field(30))
    _, std = fitted.predict(X_NEW, return_std=True)
    np.testing.assert_allclose(fitted.sample(X_NEW, 4000, seed=1).std(0), std, rtol=0.15)


@pytest.mark.parametrize("reducer", ["pca", "kpca", "isomap"])
def test_a_prediction_does_not_depend_on_other_inputs(reducer):
    fitted = ReducedGP(reducer, 2, kernel="rbf", seed=0, steps=3).fit(X, field(30))
    together, alone = fitted.predict(X_NEW, return_std=True), fitted.predict(X_NEW[2:3], return_std=True)
    for first, second in zip(together, alone, strict=True):
        np.testing.assert_allclose(first[2:3], second, rtol=1e-9)


@pytest.mark.parametrize("reducer", ["pca", "kpca", "isomap"])
def test_fit_and_prediction_take_three_passes_over_the_outputs(reducer, monkeypatch):
    numbers, read = [], ArrayOutputs.read

    def counted(self, positions):
        block = read(self, positions)
        numbers.append(block.numel())
        return block

    monkeypatch.setattr(ArrayOutputs, "read", counted)
    Y = field(20_000).astype(np.float32)
    fitted = ReducedGP(reducer, 3, kernel="rbf", steps=3, seed=0).fit(X, Y)
    assert sum(numbers) == Y.size
    fitted.predict(X_NEW, return_std=True)
    assert sum(numbers) == 3 * Y.size
    fitted.predict(X_NEW)
    assert sum(numbers) == 4 * Y.size


def test_each_component_has_the_hyperparameters_that_it_would_have_alone():
    inputs = torch.from_numpy(np.linspace(-1, 1, 20)[:, None])
    scores = torch.cat([torch.sin(2 * inputs), torch.sin(9 * inputs)], 1).mT.contiguous()
    together = fit_components(inputs, scores, "rbf")
    alone = torch.cat([fit_components(inputs, each[None], "rbf").evidence for each in scores])
    torch.testing.assert_close(together.evidence, alone, rtol=0.02, atol=1.0)
    lengths = together.kernel.base_kernel.lengthscale.flatten()
    assert lengths[1] < 0.5 * lengths[0]


def test_the_kernel_may_be_chosen_by_its_evidence():
    r = ReducedGP(steps=20).fit(X, field(10))
    each = [
        ReducedGP(kernel=name, steps=20).fit(X, field(10)).fitted_.gps.evidence.sum() for name in ("rbf", "matern52")
    ]
    torch.testing.assert_close(r.fitted_.gps.evidence.sum(), max(each))


@pytest.mark.filterwarnings("ignore::UserWarning")  # BoTorch's own, on sparse tensors
def test_hogp_is_that_of_botorch():
    Y = field(12).reshape(14, 3, 4)
    r = HOGP(steps=4, learning_rate=0.1, seed=5, standardize=False).fit(X, Y)
    inputs, outputs = torch.from_numpy(X), torch.from_numpy(Y)
    from botorch.models import HigherOrderGP  # after the fit: the first import of it warns
    from botorch.optim.fit import fit_gpytorch_mll_torch
    from botorch.settings import validate_input_scaling
    from gpytorch.mlls import ExactMarginalLogLikelihood
    from gpytorch.settings import fast_computations

    torch.manual_seed(5)
    with validate_input_scaling(False), fast_computations(False, True, True):
        theirs = HigherOrderGP(inputs, outputs, outcome_transform=None)
        likelihood = ExactMarginalLogLikelihood(theirs.likelihood, theirs)
        fit_gpytorch_mll_torch(likelihood, step_limit=4, optimizer=lambda p: torch.optim.Adam(p, lr=0.1))
        posterior = theirs.posterior(torch.from_numpy(X_NEW))
    mean, std = r.predict(X_NEW, return_std=True)
    np.testing.assert_allclose(mean, posterior.mean.detach(), rtol=1e-8)
    variance = posterior.variance.detach() + theirs.likelihood.noise.detach()
    np.testing.assert_allclose(std**2, variance, rtol=1e-8)
    draws = r.sample(X_NEW, 2000, seed=0)
    np.testing.assert_allclose(draws.std(0), std, rtol=0.15)


def test_the_points_of_a_mode_may_have_places_in_a_space_of_more_dimensions():
    fitted = HOGP(2, steps=2, seed=0).fit(X, field(12).reshape(14, 3, 4)).fitted_
    assert [tuple(each.shape) for each in fitted.model.latent_parameters] == [(3, 2), (4, 2)]


def test_outputs_that_are_folded_are_those_of_a_field_of_this_shape():
    Y, settings = field(12), {"steps": 5, "standardize": "field", "seed": 0}  # flat, so few would be scaled one by one
    folded = HOGP(fold=(3, 4), **settings).fit(X, Y)
    tensor = HOGP(output_shape=(3, 4), **settings).fit(X, Y)
    assert folded.output_shape_ == (12,)
    for mine, theirs in zip(
        folded.predict(X_NEW, return_std=True), tensor.predict(X_NEW, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(folded.sample(X_NEW, 3, seed=0), tensor.sample(X_NEW, 3, seed=0))
    np.testing.assert_array_equal(folded.fitted_.noise, tensor.fitted_.noise)


def test_an_estimator_with_a_fold_can_be_copied_before_and_after_its_fit():
    folded = HOGP(fold=(3, 4), steps=2, seed=0)
    assert clone(folded).get_params() == folded.get_params()
    fitted = clone(folded).fit(X, field(11))
    again = pickle.loads(pickle.dumps(fitted))
    assert again.fold == (3, 4)
    np.testing.assert_array_equal(again.predict(X_NEW), fitted.predict(X_NEW))


def test_a_fold_with_zeros_beyond_the_outputs_predicts_the_outputs_alone():
    many, truth = np.random.default_rng(0).uniform(-1, 1, size=(30, 2)), field(11, X_NEW)
    folded, flat = (HOGP(fold=fold, steps=200, seed=0).fit(many, field(11, many)) for fold in ((3, 4), None))
    assert folded.fitted_.model.target_shape == (3, 4)
    assert folded.sample(X_NEW, 2, seed=0).shape == (2, 5, 11)
    density = folded.log_predictive_density(X_NEW, truth)
    mean, std = folded.predict(X_NEW, return_std=True)
    assert mean.shape == std.shape == density.shape == (5, 11)
    np.testing.assert_allclose(density, -0.5 * ((truth - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi)))
    for other in (truth, flat.predict(X_NEW)):
        assert np.sqrt(((mean - other) ** 2).mean()) < 0.15 * truth.std()


def test_a_fold_that_cannot_be_is_told():
    for shape, fold, told in (
        ((3, 4), (3, 4), r"fold is for outputs of one mode, \(D,\); got outputs of shape \(3, 4\)"),
        ((12,), (2, 5), r"fold must have room for all 12 outputs; \(2, 5\) has it for 10"),
        ((12,), (0, 12), r"fold must hold positive sizes \(d_1, …, d_M\); got \(0, 12\)"),
    ):
        with pytest.raises(ValueError, match=told):
            HOGP(fold=fold).fit(X, field(12).reshape(14, *shape))
    with pytest.raises(MemoryError, match=r"14 rows of \(2, 6000\) outputs"):
        HOGP(fold=(2, 6000), memory=1.0).fit(X, field(12))


def test_hogp_says_that_memory_will_run_out_before_it_does():
    with pytest.raises(MemoryError, match=r"would need about 200\.2 GB for 100 rows of \(1000, 1000, 10\) outputs"):
        check_memory(100, (1000, 1000, 10), 64.0)
    check_memory(100, (1000, 1000, 10), 256.0)
    with pytest.raises(MemoryError, match=r"and there are 0\.0 GB"):
        HOGP(memory=1e-6).fit(X, field(12))


@pytest.mark.parametrize("method", [ReducedGP(), HOGP()])
def test_missing_outputs_are_refused_with_a_word_on_who_takes_them(method):
    Y = field(12)
    Y[2, 3] = np.nan
    with pytest.raises(ValueError, match="needs complete outputs, but Y holds NaN: IndependentGP, LMC"):
        method.fit(X, Y)


def test_wrong_settings_are_told():
    for settings, told in (
        ({"reducer": "umap"}, "reducer must be 'pca' or 'kpca' or 'isomap'; got 'umap'"),
        ({"n_components": 1.5}, "n_components must be an integer of at least 1 or a share between 0 and 1; got 1.5"),
        ({"n_components": 0}, "n_components must be"),
        ({"kernel": "cubic"}, "kernel must be 'auto' or one out of rbf, matern52, matern32; got 'cubic'"),
    ):
        with pytest.raises(ValueError, match=told):
            ReducedGP(**settings).fit(X, field(12))


@pytest.mark.parametrize("method", [ReducedGP(), HOGP()])
def test_without_gpytorch_the_extra_is_named(method, monkeypatch):
    monkeypatch.setitem(sys.modules, "botorch", None)
    with pytest.raises(ImportError, match=r"pip install 'pyro-gprn\[baselines\]'"):
        method.fit(X, field(12))


def test_replicated_inputs_with_noise_have_components():
    """Where inputs are replicated and outputs are mostly noise, length-scales of single columns tend to zero."""
    random = np.random.default_rng(0)
    X = np.repeat(random.normal(size=(20, 8)), 3, axis=0)
    Y = random.normal(size=(60, 30)) + np.repeat(random.normal(size=(20, 30)), 3, axis=0)
    gps = ReducedGP("pca", n_components=20, kernel="rbf", seed=0).fit(X, Y)
    mean, deviation = gps.predict(X[:3], return_std=True)
    assert np.isfinite(mean).all()
    assert (deviation > 0).all()
    assert gps.fitted_.gps.kernel.base_kernel.lengthscale.min() >= LEAST_LENGTH
