"""A fitted estimator in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from pyro_gprn.archive import read_archive, write_archive
from pyro_gprn.estimator.containers import Template, read_outputs
from pyro_gprn.estimator.inference import find_inference
from pyro_gprn.estimator.scaling import Scaling
from pyro_gprn.network.kernels import describe_kernel, rebuild_kernel
from pyro_gprn.training.checkpoint import digest

if TYPE_CHECKING:
    from pyro_gprn.estimator.regressor import GPRNRegressor

_KIND = "regressor"
_KERNELS = ("kernel_f", "kernel_w")


def write_regressor(path: str | Path, regressor: GPRNRegressor, with_data: bool) -> None:
    """Everything that :func:`read_regressor` needs."""
    model, outputs = regressor.model_, regressor._outputs
    write_archive(
        path,
        _KIND,
        {
            "settings": {name: _plain_setting(value) for name, value in regressor.get_params(deep=False).items()},
            "kernels": {name: _describe(getattr(model, name)) for name in _KERNELS},
            "model": model.state_dict(),
            "guide": regressor.guide_.state_dict(),
            "guide_mean": getattr(regressor.guide_, "mean", None),
            "outputs": outputs if with_data else None,
            "digest": digest(outputs),
            "scaling": regressor._scaling._asdict(),
            "template": _describe_template(regressor._template),
            "seed": regressor._seed,
            "names": list(getattr(regressor, "feature_names_in_", [])),
            "output_shape": list(regressor.output_shape_),
            "n_latents": regressor.n_latents_,
            "effective_outputs": regressor.effective_outputs_,
            "elbo": regressor.elbo_,
            "losses": torch.from_numpy(regressor.losses_),
            "restarts": regressor._restarts,
            "latent_scores": regressor.latent_scores_,
        },
    )


def read_regressor(kind: type[GPRNRegressor], path: str | Path, Y: Any, kernels: dict[str, Kernel | None]) -> Any:
    """The estimator in a file."""
    tree = read_archive(path, _KIND)
    regressor = kind(**tree["settings"])
    device = regressor.device or "cpu"
    inference = find_inference(regressor.inference)
    made = {name: _rebuild(tree["kernels"][name], kernels[name], name, path) for name in _KERNELS}
    state = tree["model"]
    shape, n_latents = tuple(tree["output_shape"]), tree["n_latents"]
    model = inference.make_model(
        state["X"].to(device), shape, n_latents, made["kernel_f"], made["kernel_w"], tree["effective_outputs"]
    )
    model.load_state_dict(state)
    guide = inference.guide(model) if tree["guide_mean"] is None else inference.guide(model, mean=tree["guide_mean"])
    guide.load_state_dict(tree["guide"])
    scaling = Scaling(**tree["scaling"])
    regressor._outputs = _find_outputs(tree, Y, scaling, path).to(device)
    regressor._scaling = Scaling(*(part.to(device) for part in scaling))
    regressor._template, regressor._seed = _rebuild_template(tree["template"]), tree["seed"]
    regressor.n_features_in_ = state["X"].shape[1]
    if tree["names"]:
        regressor.feature_names_in_ = np.array(tree["names"], dtype=object)
    regressor.model_, regressor.guide_ = model, guide
    regressor.output_shape_, regressor.n_latents_ = shape, n_latents
    regressor.effective_outputs_, regressor.elbo_ = tree["effective_outputs"], tree["elbo"]
    regressor.losses_, regressor._restarts = tree["losses"].numpy(), tree["restarts"]
    regressor.restart_elbos_ = np.array([run["bound"] for run in tree["restarts"]])
    regressor.latent_scores_ = {int(K): score for K, score in tree["latent_scores"].items()}
    return regressor


def _find_outputs(tree: dict[str, Any], Y: Any, scaling: Scaling, path: str | Path) -> Tensor:
    if tree["outputs"] is not None:
        return tree["outputs"]
    if Y is None:
        raise ValueError(f"{path} was saved without its training outputs: pass the same Y, load(path, Y=Y)")
    outputs = read_outputs(Y)
    if outputs[0].numel() == len(scaling.y_mean) and outputs.dtype == scaling.y_mean.dtype:
        scaled = scaling.outputs(outputs.reshape(len(outputs), -1))
        if digest(scaled) == tree["digest"]:
            return scaled
    raise ValueError(f"Y is not what the estimator in {path} was fitted to: its values, shape or type differ")


def _plain_setting(value: Any) -> Any:
    """A constructor's argument as a file can hold it; kernels are kept on their own."""
    if isinstance(value, Kernel):
        return None
    if isinstance(value, (Path, torch.device)):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _describe(kernel: Kernel) -> dict[str, Any]:
    try:
        return describe_kernel(kernel)
    except ValueError:
        return {"own": type(kernel).__name__}  # to be given again


def _rebuild(description: dict[str, Any], given: Kernel | None, name: str, path: str | Path) -> Kernel:
    if given is not None:
        return given
    if "own" in description:
        raise ValueError(
            f"{name} in {path} is a {description['own']}, which a file without code cannot hold: pass one,"
            f" load(path, {name}=...)"
        )
    return rebuild_kernel(description)


def _describe_template(template: Template) -> dict[str, Any]:
    names = [name.item() if isinstance(name, np.generic) else name for name in template.names]
    if not all(name is None or isinstance(name, (str, int, float)) for name in names):
        raise ValueError(f"columns of outputs must be named by strings or numbers to be saved; got {names[:3]}")
    return {
        "library": template.library,
        "shape": list(template.shape),
        "dtype": template.dtype,
        "names": names,
        "coordinates": {name: _describe_labels(values) for name, values in template.coordinates.items()},
    }


def _describe_labels(values: np.ndarray) -> dict[str, Any]:
    if values.dtype.kind in "mM":  # times: as integers, with their unit
        return {"dtype": str(values.dtype), "values": torch.from_numpy(values.astype(np.int64))}
    if values.dtype.kind in "biuf":
        return {"dtype": str(values.dtype), "values": torch.from_numpy(np.array(values))}
    return {"dtype": "object", "values": [str(value) for value in values]}


def _rebuild_template(description: dict[str, Any]) -> Template:
    coordinates = {
        name: np.asarray(labels["values"]).astype(labels["dtype"])
        for name, labels in description["coordinates"].items()
    }
    shape = tuple(description["shape"])
    return Template(description["library"], shape, description["dtype"], description["names"], coordinates)
