"""Input checks: errors that say what was expected and what came."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Literal

import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Size, Tensor


def check_inputs(X: Tensor, n_columns: int | None = None, name: str = "X") -> Tensor:
    """Inputs as a finite float64 tensor ``(N, P)``.

    :param n_columns: the ``P`` that is expected, if any.
    :param name: what the inputs are called in an error.

    >>> check_inputs([[1, 2], [3, 4]])
    tensor([[1., 2.],
            [3., 4.]], dtype=torch.float64)
    """
    X = X if isinstance(X, Tensor) else torch.as_tensor(X)  # which would move a tensor to torch's default device
    if X.dim() != 2:
        hint = "; for one input column use X[:, None]" if X.dim() == 1 else ""
        raise ValueError(f"{name} must have shape (N, P), one row for each example; got {tuple(X.shape)}{hint}")
    if 0 in X.shape:
        raise ValueError(f"{name} must have at least one row and one column; got shape {tuple(X.shape)}")
    if n_columns is not None and X.shape[1] != n_columns:
        raise ValueError(f"{name} must have the {n_columns} columns of the training inputs; got {X.shape[1]}")
    if not torch.isfinite(X).all():
        row = int((~torch.isfinite(X)).any(1).nonzero()[0])
        raise ValueError(f"{name} must be finite; row {row} holds NaN or inf")
    return X.to(torch.float64)


def check_output_shape(output_shape: int | Sequence[int], name: str = "output_shape") -> Size:
    """The output shape ``(d_1, …, d_M)`` as a torch.Size of positive integers.

    :param name: what the shape is called in an error.

    >>> check_output_shape(5), check_output_shape([3, 4])
    (torch.Size([5]), torch.Size([3, 4]))
    """
    try:
        sizes = [operator.index(output_shape)]  # type: ignore[arg-type]
    except TypeError:
        sizes = [operator.index(size) for size in output_shape]  # type: ignore[union-attr]
    if not sizes or min(sizes) < 1:
        raise ValueError(f"{name} must hold positive sizes (d_1, …, d_M); got {output_shape}")
    return Size(sizes)


def check_n_latents(n_latents: int) -> int:
    """The number of latent functions ``K`` as a positive integer."""
    if operator.index(n_latents) < 1:
        raise ValueError(f"n_latents must be at least 1; got {n_latents}")
    return operator.index(n_latents)


def check_kernel(kernel: Kernel, X: Tensor, name: str) -> Kernel:
    """Returns ``kernel`` if it is a Pyro kernel whose input columns X, ``(N, P)``, has."""
    if not isinstance(kernel, Kernel):
        raise ValueError(f"{name} must be a kernel of pyro.contrib.gp.kernels; got {type(kernel).__name__}")
    if max(kernel.active_dims) >= X.shape[1]:
        raise ValueError(f"{name} reads input columns {list(kernel.active_dims)}, but X has {X.shape[1]} columns")
    return kernel


def check_noise(noise: float | Tensor, X: Tensor, output_shape: Sequence[int], name: str) -> Tensor:
    """A standard deviation as a positive float64 tensor of shape ``()`` or ``output_shape``, on the device of X.

    >>> check_noise(0.5, torch.zeros(2, 1), (3,), "noise_y")
    tensor(0.5000, dtype=torch.float64)
    """
    noise = torch.as_tensor(noise, dtype=torch.float64, device=X.device).detach().clone()
    if noise.shape not in (Size(), Size(output_shape)):
        expected = "one number" if not output_shape else f"one number or of shape {tuple(output_shape)}"
        raise ValueError(f"{name} must be {expected}; got shape {tuple(noise.shape)}")
    if not (torch.isfinite(noise) & (noise > 0)).all():
        raise ValueError(f"{name} is a standard deviation and must be positive and finite; got {noise.min().item()}")
    return noise


def check_outputs(Y: Tensor, mask: Tensor | None, n_rows: int, output_shape: Size) -> tuple[Tensor, Tensor | None]:
    """Outputs and mask as tensors ``(N, d_1, …, d_M)``; flat ones, ``(N, D)``, are taken too. No value is looked at."""
    Y = check_output_array(Y, n_rows, output_shape, "Y")
    if not Y.is_floating_point():
        raise ValueError(f"Y must be floating-point; got {Y.dtype}")
    if mask is None:
        return Y, None
    mask = check_output_array(mask, n_rows, output_shape, "mask")
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean, True where an output was observed; got {mask.dtype}")
    return Y, mask


def check_output_array(array: Tensor, n_rows: int, output_shape: Size, name: str) -> Tensor:
    """A view of ``array``, ``(N, D)`` or ``(N, d_1, …, d_M)``, in the latter shape.

    >>> check_output_array(torch.ones(2, 12), 2, Size((3, 4)), "Y").shape
    torch.Size([2, 3, 4])
    """
    array = array if isinstance(array, Tensor) else torch.as_tensor(array)
    expected = Size((n_rows, *output_shape))
    if array.dim() < 2 or array.shape[0] != n_rows:
        raise ValueError(
            f"{name} must have shape {tuple(expected)}, one row for each row of X; got {tuple(array.shape)}"
        )
    if array.shape == expected:
        return array
    if array.dim() == 2 and array.shape[1] == output_shape.numel():
        return array.reshape(expected)
    raise ValueError(
        f"{name} of shape {tuple(array.shape)} has {array[0].numel()} outputs a row, but output_shape"
        f" {tuple(output_shape)} multiplies to {output_shape.numel()}"
        if array[0].numel() != output_shape.numel()
        else f"{name} must have shape {tuple(expected)} or be flat; got {tuple(array.shape)}"
    )


def check_effective_outputs(
    effective_outputs: float | Literal["auto"] | None, n_outputs: int
) -> float | Literal["auto"] | None:
    """Returns ``effective_outputs`` if it is None, ``"auto"`` or a number above 0 and at most D.

    >>> check_effective_outputs(20, n_outputs=100)
    20.0
    """
    if effective_outputs is None or effective_outputs == "auto":
        return effective_outputs
    if isinstance(effective_outputs, str) or not 0 < effective_outputs <= n_outputs:
        raise ValueError(
            f"effective_outputs must be None, 'auto' or a number above 0 and at most D = {n_outputs};"
            f" got {effective_outputs!r}"
        )
    return float(effective_outputs)
