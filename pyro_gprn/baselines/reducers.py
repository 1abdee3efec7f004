"""Reduction of outputs to a few components, and the way back. Both need the outputs through their Gram matrix alone.

All three reducers are the principal components of a centred N×N matrix of similarities between rows: inner products
(PCA), a kernel of distances (kernel PCA), distances along a graph of neighbours (Isomap). And in all three the way back
from components z to outputs, the pre-image, is a combination ``c(z) Y`` of the training outputs. So a million outputs
cost one pass for the Gram matrix, and one for each prediction.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import add_to_diagonal, identity_like

#: Components whose variance is a smaller share of the first one's are rounding errors.
LEAST_SHARE = 1e-12
#: Ridges, and widths of the kernel over the root-mean-square distance of scores, among which pre-images are chosen.
RIDGES, WIDTHS = (1e-6, 1e-4, 1e-2, 1.0), (0.5, 1.0, 2.0, 4.0)
#: What is added to the diagonal of neighbours' Gram matrices, over their trace: as in locally linear embedding.
NEIGHBOUR_RIDGE = 1e-3


class Components(NamedTuple):
    """The principal components of a matrix of similarities."""

    scores: Tensor  #: of each row, (N, C)
    vectors: Tensor  #: eigenvectors, (N, C)
    values: Tensor  #: eigenvalues, (C,), largest first


class Reduction(ABC):
    """Outputs reduced to C components.

    :param scores: the components of each training row, centred, ``(N, C)``.
    """

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    @abstractmethod
    def coefficients(self, scores: Tensor) -> Tensor:
        """``c(z)``, ``(…, N)`` for components ``(…, C)``: the outputs that belong to them are ``c(z) Y``."""

    @property
    @abstractmethod
    def residual(self) -> Tensor:
        """``R``, ``(N, N)``: ``R Y`` estimates by how much new outputs differ from what their components give.

        That is not what training outputs differ by: to these the reduction was fitted.
        """


class LinearReduction(Reduction):
    """PCA: the components with the largest variance, and the linear way back.

    :param gram: ``Y Yᵀ``, ``(N, N)``.
    :param n_components: how many components, or the share of the variance that they explain.

    >>> Y = torch.randn(6, 40, dtype=torch.float64)
    >>> pca = LinearReduction(Y @ Y.mT, 5)
    >>> torch.allclose(pca.coefficients(pca.scores) @ Y, Y)
    True
    """

    def __init__(self, gram: Tensor, n_components: float) -> None:
        scores, vectors, values = principal_components(gram, n_components)
        super().__init__(scores)
        #: B, (C, N): the axes of the components, as rows, are B Y.
        self.axes = (vectors / values.sqrt()).mT

    def coefficients(self, scores: Tensor) -> Tensor:
        return 1.0 / len(self.scores) + scores @ self.axes

    @property
    def residual(self) -> Tensor:
        N, C = self.scores.shape
        # A mean and C loadings were fitted to each output: of N numbers, N − 1 − C are left.
        freedom = (N / max(1, N - 1 - C)) ** 0.5
        return freedom * (identity_like(N, self.scores) - self.coefficients(self.scores))


class KernelReduction(Reduction):
    """Kernel PCA with a Gaussian kernel, and a way back by kernel ridge regression (Bakır et al., 2004).

    The width of the kernel is the root-mean-square distance between outputs. The way back is that of scikit-learn's
    ``KernelPCA(fit_inverse_transform=True)``, a regression of the (centred) outputs on the components. Its ridge, and
    the width of its kernel, are those with the smallest error where one row at a time is left out.

    :param gram: ``Y Yᵀ``, ``(N, N)``.
    :param n_components: how many components, or the share of the variance that they explain.

    >>> Y = torch.outer(torch.linspace(-1, 1, 12), torch.arange(1.0, 6.0)).double()
    >>> kpca = KernelReduction(Y @ Y.mT, 2)
    >>> bool((kpca.coefficients(kpca.scores) @ Y - Y).abs().max() < 0.1)
    True
    """

    def __init__(self, gram: Tensor, n_components: float) -> None:
        squares = squared_distances(gram)
        super().__init__(principal_components(torch.exp(-squares / _between(squares)), n_components).scores)
        spread, centred = _between(torch.cdist(self.scores, self.scores).square()), centre(gram)
        regressions = [KernelRidge(self.scores, 1.0 / (w**2 * spread), ridge) for w in WIDTHS for ridge in RIDGES]
        self._regression = min(regressions, key=lambda each: _sum_of_squares(each.residual, centred))

    def coefficients(self, scores: Tensor) -> Tensor:
        weights = self._regression.coefficients(scores)
        return weights + (1.0 - weights.sum(-1, keepdim=True)) / len(self.scores)

    @property
    def residual(self) -> Tensor:
        residual = self._regression.residual  # of centred outputs
        return residual - residual.mean(1, keepdim=True)


class KernelRidge:
    """Regression of outputs on components, ``k(z, Z) (k(Z, Z) + ridge I)⁻¹ Y`` with ``k = exp(−gamma ‖z − z'‖²)``.

    :param scores: ``Z``, ``(N, C)``.
    """

    def __init__(self, scores: Tensor, gamma: float, ridge: float) -> None:
        self._scores, self._gamma = scores, gamma
        K = self._kernel(scores)
        self._inverse = torch.linalg.inv(add_to_diagonal(K, K.new_tensor(ridge)))

    def _kernel(self, scores: Tensor) -> Tensor:
        return torch.exp(-self._gamma * torch.cdist(scores, self._scores).square())

    def coefficients(self, scores: Tensor) -> Tensor:
        """``(…, N)``, for components ``(…, C)``."""
        return self._kernel(scores) @ self._inverse

    @property
    def residual(self) -> Tensor:
        """The matrix that gives the error in each row if it is left out, ``(N, N)``."""
        return self._inverse / self._inverse.diagonal().unsqueeze(1)


class GraphReduction(Reduction):
    """Isomap by scikit-learn, and a way back by the nearest training rows.

    Distances between rows are those along a graph that joins every row with its nearest ones; the components are their
    classical scaling. Isomap itself has no way back. Ours is a barycentre, as in locally linear embedding: the
    combination of the training rows with the nearest components, of coefficients that sum to one, whose components come
    nearest to those that are given. The error of a training row is that of the barycentre of others.

    :param gram: ``Y Yᵀ``, ``(N, N)``.
    :param n_components: how many components, or the share of the variance that they explain.
    :param n_neighbours: how many rows a row is joined with.

    >>> Y = torch.outer(torch.linspace(-1, 1, 12), torch.arange(1.0, 6.0)).double()
    >>> isomap = GraphReduction(Y @ Y.mT, 2)
    >>> bool((isomap.coefficients(isomap.scores) @ Y - Y).abs().max() < 0.1)
    True
    """

    def __init__(self, gram: Tensor, n_components: float, n_neighbours: int = 5) -> None:
        from sklearn.manifold import Isomap

        distances = squared_distances(gram).sqrt().cpu().numpy()
        n_neighbours = min(n_neighbours, len(gram) - 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parts of the graph that are not joined are, where they are nearest
            graph = Isomap(n_neighbors=n_neighbours, n_components=1, metric="precomputed").fit(distances)
        along = torch.from_numpy(graph.dist_matrix_).to(gram)
        super().__init__(principal_components(-0.5 * along.square(), n_components).scores)
        self._n_neighbours = min(max(n_neighbours, self.scores.shape[1] + 1), len(gram) - 1)

    def coefficients(self, scores: Tensor) -> Tensor:
        return self._barycentres(scores, torch.cdist(scores, self.scores))

    @property
    def residual(self) -> Tensor:
        distances = torch.cdist(self.scores, self.scores)
        distances.fill_diagonal_(torch.inf)  # each without itself
        return identity_like(len(self.scores), self.scores) - self._barycentres(self.scores, distances)

    def _barycentres(self, scores: Tensor, distances: Tensor) -> Tensor:
        """Coefficients ``(…, N)`` of components ``(…, C)`` that are so far from those of each training row."""
        _, nearest = distances.topk(self._n_neighbours, largest=False)  # (…, k)
        apart = self.scores[nearest] - scores.unsqueeze(-2)  # (…, k, C)
        gram = apart @ apart.mT
        level = NEIGHBOUR_RIDGE * gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        gram = add_to_diagonal(gram, level.clamp(min=torch.finfo(gram.dtype).tiny ** 0.5))
        weights = torch.linalg.solve(gram, torch.ones_like(apart[..., :1])).squeeze(-1)
        weights = weights / weights.sum(-1, keepdim=True)
        return torch.zeros_like(distances).scatter(-1, nearest, weights)


def principal_components(similarities: Tensor, n_components: float) -> Components:
    """The principal components of rows whose similarities are given, centred or not.

    Of components whose variance is nothing but rounding there are none: there may be fewer than were asked for.

    :param similarities: ``(N, N)``.
    :param n_components: how many components at most, an integer; or the share of the variance that they explain.

    >>> principal_components(torch.diag(torch.tensor([9.0, 4.0, 1.0])), 2).scores.shape
    torch.Size([3, 2])
    """
    values, vectors = torch.linalg.eigh(centre(similarities))
    values, vectors = values.flip(0), vectors.flip(1)
    n = int((values > LEAST_SHARE * values[0].clamp(min=0.0)).sum())
    if isinstance(n_components, int):
        n = min(n, n_components)
    else:
        shares = values[:n].cumsum(0) / values[:n].sum()
        n = min(n, 1 + int((shares < n_components).sum()))
    n = max(n, 1)
    values, vectors = values[:n].clamp(min=torch.finfo(values.dtype).tiny), vectors[:, :n]
    return Components(vectors * values.sqrt(), vectors, values)


def centre(matrix: Tensor) -> Tensor:
    """Similarities of rows, ``(N, N)``, as those of centred rows."""
    return matrix - matrix.mean(0) - matrix.mean(1, keepdim=True) + matrix.mean()


def squared_distances(gram: Tensor) -> Tensor:
    """``‖y_i − y_j‖²`` between rows, ``(N, N)``, by their Gram matrix.

    >>> squared_distances(torch.tensor([[1.0, 0.0], [0.0, 4.0]]))
    tensor([[0., 5.],
            [5., 0.]])
    """
    squares = gram.diagonal()
    return (squares + squares.unsqueeze(1) - 2.0 * gram).clamp(min=0.0).fill_diagonal_(0.0)


def _between(squares: Tensor) -> float:
    """The mean of squared distances between different rows; 1 if there are none."""
    n = len(squares)
    return (squares.sum() / max(1, n * (n - 1))).item() or 1.0


def _sum_of_squares(residual: Tensor, gram: Tensor) -> float:
    """``‖R Y‖²`` by the Gram matrix of the outputs."""
    return ((residual @ gram) * residual).sum().item()
