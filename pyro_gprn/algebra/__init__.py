"""Linear algebra and distributions with Kronecker-factored covariances. Nothing here knows of networks or data."""

from pyro_gprn.algebra import kl  # registers the divergences
from pyro_gprn.algebra.tensor_normal import MatrixNormal, TensorNormal

__all__ = ["MatrixNormal", "TensorNormal", "kl"]
