"""Linear elasticity in the plane by finite elements: how a plate deforms under a force.

Elements are squares of side and thickness 1. An array with one value for each element is ``(height, width)``, with row
0 at the top. An array with one vector for each node is ``(height + 1, width + 1, 2)``; the first component of a vector
points to the right, the second upwards.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solveh_banded

POISSON_RATIO = 0.3


def _strain_matrix(x: float, y: float) -> np.ndarray:
    """The matrix that gives the strains (xx, yy, xy) at a point of the unit square, ``(3, 8)``.

    It multiplies the displacements of the corners (0, 0), (1, 0), (1, 1) and (0, 1), each along x and along y. Between
    the corners the displacements are bilinear.
    """
    along_x = [y - 1, 1 - y, y, -y]
    along_y = [x - 1, -x, x, 1 - x]
    matrix = np.zeros((3, 8))
    matrix[0, 0::2] = matrix[2, 1::2] = along_x
    matrix[1, 1::2] = matrix[2, 0::2] = along_y
    return matrix


# Stresses (xx, yy, xy) from strains, for plane stress and Young's modulus 1
_ELASTICITY = np.array([[1, POISSON_RATIO, 0], [POISSON_RATIO, 1, 0], [0, 0, (1 - POISSON_RATIO) / 2]])
_ELASTICITY /= 1 - POISSON_RATIO**2
_CENTRE_STRESS = _ELASTICITY @ _strain_matrix(0.5, 0.5)


def _stiffness_root() -> np.ndarray:
    """A root of an element's stiffness matrix: ``R``, ``(12, 8)``, with ``RᵀR = K_0 = ∫ Bᵀ C B`` over the element."""
    # Two Gauss points along each side integrate exactly, each of the four with the coefficient ¼. With C = L Lᵀ,
    # K_0 = Σ ¼ Bᵀ L Lᵀ B, so each point adds the rows ½ Lᵀ B to R.
    points = 0.5 + np.array([-0.5, 0.5]) / np.sqrt(3)
    strains = np.stack([_strain_matrix(x, y) for x in points for y in points])
    return (0.5 * np.linalg.cholesky(_ELASTICITY).T @ strains).reshape(12, 8)


_STIFFNESS_ROOT = _stiffness_root()
_STIFFNESS = _STIFFNESS_ROOT.T @ _STIFFNESS_ROOT


def _at_corners(nodal: np.ndarray) -> np.ndarray:
    """The vectors at the four corners of each element, in the order of the strain matrix, ``(height · width, 8)``."""
    corners = nodal[1:, :-1], nodal[1:, 1:], nodal[:-1, 1:], nodal[:-1, :-1]
    return np.stack(corners, axis=2).reshape(-1, 8)


class Plate:
    """A rectangle of square bilinear elements in plane stress. Some of its displacements are held at zero.

    The unknown displacements are numbered column by column, from the top down. All nonzero entries of the stiffness
    matrix are then on the main diagonal and the ``2 height + 5`` diagonals on either side. At 40 × 80 elements the
    Cholesky factorisation of such a band takes a fifth of the time of SuperLU with its best ordering.

    :param held: which displacements are held at zero, boolean, ``(height + 1, width + 1, 2)``. There must be enough of
        them to keep the plate from moving as a whole.

    >>> held = np.zeros((3, 5, 2), dtype=bool)
    >>> held[:, 0, 0] = held[2, 0, 1] = True
    >>> force = np.zeros(held.shape)
    >>> force[:, -1, 0] = 0.05, 0.1, 0.05  # an even pull at the right edge
    >>> Plate(held).displacement(np.ones((2, 4)), force)[1, :, 0].round(6)
    array([0. , 0.1, 0.2, 0.3, 0.4])
    """

    def __init__(self, held: np.ndarray) -> None:
        self.shape = held.shape[0] - 1, held.shape[1] - 1
        self._free = ~held
        self._size = int(self._free.sum())
        # The number of each displacement among the unknowns, or −1 if it is held
        down_columns = self._free.swapaxes(0, 1)
        numbers = np.cumsum(down_columns).reshape(down_columns.shape).swapaxes(0, 1) - 1
        self._number = np.where(held, -1, numbers)
        # solveh_banded wants the matrix by its diagonals: entry (i, j) is in row i − j and column j of the band. Each
        # entry of an element's stiffness matrix that is on or below the main diagonal is added to one place there.
        at_corners = _at_corners(self._number)
        diagonal = at_corners[:, :, None] - at_corners[:, None, :]
        element, i, j = np.nonzero((diagonal >= 0) & (at_corners[:, None, :] >= 0))
        self._entry_element, self._entry_stiffness = element, _STIFFNESS[i, j]
        self._entry_place = diagonal[element, i, j] * self._size + at_corners[element, j]
        self._band_shape = int(diagonal[element, i, j].max()) + 1, self._size

    def displacement(self, modulus: np.ndarray, force: np.ndarray) -> np.ndarray:
        """The displacements of the nodes under a force, ``(height + 1, width + 1, 2)``.

        :param modulus: Young's modulus of each element, ``(height, width)``.
        :param force: the force at each node, ``(height + 1, width + 1, 2)``. A force on a held displacement has no
            effect.
        """
        entries = modulus.ravel()[self._entry_element] * self._entry_stiffness
        size = self._band_shape[0] * self._band_shape[1]
        band = np.bincount(self._entry_place, entries, minlength=size).reshape(self._band_shape)
        load = np.empty(self._size)
        load[self._number[self._free]] = force[self._free]
        unknowns = solveh_banded(band, load, overwrite_ab=True, overwrite_b=True, lower=True, check_finite=False)
        return np.append(unknowns, 0.0)[self._number]  # a held displacement has number −1, which is the 0 at the end

    def unit_work(self, displacement: np.ndarray) -> np.ndarray:
        """Twice the strain energy of each element at Young's modulus 1, ``u_eᵀ K_0 u_e``, ``(height, width)``."""
        # As the sum of squares ‖R u_e‖². The product u_eᵀ K_0 u_e itself can be rounded to a value below 0 where an
        # element moves and turns without being strained.
        return np.square(_at_corners(displacement) @ _STIFFNESS_ROOT.T).sum(1).reshape(self.shape)

    def von_mises_stress(self, modulus: np.ndarray, displacement: np.ndarray) -> np.ndarray:
        """Von Mises stress at the centre of each element, ``(height, width)``."""
        xx, yy, xy = _CENTRE_STRESS @ _at_corners(displacement).T
        return modulus * np.sqrt(xx**2 - xx * yy + yy**2 + 3 * xy**2).reshape(self.shape)
