import pytest
import torch

from pyro_gprn.algebra.linalg import NotPositiveDefiniteError, along_mode, covariance_root, safe_cholesky


@pytest.mark.parametrize("batch_shape", [(), (4,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_safe_cholesky_is_the_cholesky_factor_of_a_positive_definite_matrix(batch_shape, dtype):
    root = torch.randn(*batch_shape, 5, 5, dtype=dtype)
    matrix = root @ root.mT + torch.eye(5, dtype=dtype)
    torch.testing.assert_close(safe_cholesky(matrix), torch.linalg.cholesky(matrix), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_safe_cholesky_of_a_singular_matrix_warns_and_names_it(dtype):
    matrix = 1e6 * torch.ones(3, 3, dtype=dtype)
    matrix[0, 0] -= 1e-9 * 1e6
    with pytest.warns(RuntimeWarning, match="my matrix is not numerically positive definite"):
        factor = safe_cholesky(matrix - 1e-7 * torch.eye(3, dtype=dtype), name="my matrix")
    torch.testing.assert_close(factor @ factor.mT, matrix, rtol=1e-3, atol=0)


def test_safe_cholesky_with_jitter_from_the_start_is_silent():
    factor = safe_cholesky(torch.ones(3, 3, dtype=torch.float64), jitter=1e-10)
    torch.testing.assert_close(factor @ factor.mT, torch.ones(3, 3, dtype=torch.float64))


def test_safe_cholesky_of_zeros_is_tiny_not_nan():
    factor = safe_cholesky(torch.zeros(3, 3, dtype=torch.float64), jitter=1e-10)
    assert torch.isfinite(factor).all()


@pytest.mark.parametrize(
    ("matrix", "problem"),
    [(-torch.eye(2), "not positive definite"), (torch.full((2, 2), torch.nan), "NaN or inf")],
    ids=["negative", "nan"],
)
def test_safe_cholesky_that_cannot_help_says_which_matrix_and_why(matrix, problem):
    with pytest.raises(NotPositiveDefiniteError, match=rf"K_w, of shape \(2, 2\).*{problem}"):
        safe_cholesky(matrix, name="K_w")


@pytest.mark.parametrize("batch_shape", [(), (4,), (2, 3)], ids=str)
def test_covariance_root_squares_to_a_singular_covariance(batch_shape):
    thin = torch.randn(*batch_shape, 5, 2, dtype=torch.float64)
    root = covariance_root(thin @ thin.mT)
    torch.testing.assert_close(root @ root.mT, thin @ thin.mT)


@pytest.mark.parametrize("batch_shape", [(), (4,), (2, 3)], ids=str)
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_along_mode_multiplies_one_mode(batch_shape, mode):
    tensor = torch.randn(*batch_shape, 2, 3, 4, dtype=torch.float64)
    matrix = torch.randn(*batch_shape, 6, tensor.shape[mode - 3], dtype=torch.float64)
    result = along_mode(lambda columns: matrix.unsqueeze(-3) @ columns, tensor, mode, 3)
    letters = ["i", "j", "k"]
    after = "".join("z" if m == mode else letter for m, letter in enumerate(letters))
    expected = torch.einsum(f"...z{letters[mode]},...ijk->...{after}", matrix, tensor)
    torch.testing.assert_close(result, expected)
