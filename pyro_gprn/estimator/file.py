"""A fitted estimator in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Size, Tensor

from pyro_gprn.archive import ArchiveError, read_archive, reading, write_archive
from pyro_gprn.collapsed.conditioned import WhiteCoordinates
from pyro_gprn.estimator.containers import Template, read_outputs
from pyro_gprn.estimator.fitted import FittedNetwork
from pyro_gprn.estimator.inference import find_inference, inference_of
from pyro_gprn.estimator.lazy_file import describe_lazy, rebuild_lazy
from pyro_gprn.estimator.scaling import Scaling
from pyro_gprn.network.kernels import describe_kernel, rebuild_kernel
from pyro_gprn.network.own_kernels import shared_kernel
from pyro_gprn.outputs.compressed import CompressedStatistics
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.source import ArrayOutputs, OutputSource, StandardizedOutputs
from pyro_gprn.prediction.scales import OutputScales, Scales
from pyro_gprn.training.checkpoint import digest
from pyro_gprn.training.widening import Places, Widening

_KIND = "regressor"
#: The jitter of fits whose files do not name it.
_FORMER_JITTER = 1e-10
_KERNELS = ("kernel_f", "kernel_w")
#: Where the description of a kernel is that of the kernel which each output has.
_OF_EACH = "of each output"


def write_fit(
    path: str | Path, fitted: FittedNetwork, settings: dict[str, Any], names: list[str], *, with_data: bool | None
) -> None:
    """Writes a fit to a file, with everything that :func:`read_fit` needs.

    :param path: the file.
    :param fitted: the fit.
    :param settings: the estimator's settings, by name.
    :param names: names of the input columns; empty if they have none.
    :param with_data: whether the training outputs go into the file; None lets them if they are in memory.
    """
    model, outputs = fitted.model, fitted.outputs
    if with_data and fitted.is_lazy:
        raise ValueError("outputs that are not in memory do not go into a file: with_data must be None or False")
    embeds = not fitted.is_lazy and with_data is not False
    plain_settings = {name: _plain_setting(value) for name, value in settings.items() if name not in _KERNELS}
    write_archive(
        path,
        _KIND,
        {
            "settings": plain_settings,
            "inference": inference_of(fitted.guide).name,
            "kernel_settings": {name: _describe_setting(fitted.kernels[name]) for name in _KERNELS},
            "kernels": {name: _describe(getattr(model, name)) for name in _KERNELS},
            "model": model.state_dict(),
            "guide": fitted.guide.state_dict(),
            "guide_mean": getattr(fitted.guide, "mean", None),
            "Y": outputs.read(slice(None)).reshape(outputs.shape) if embeds else None,
            "lazy": describe_lazy(fitted) if fitted.is_lazy else None,
            "digest": None if fitted.is_lazy else fitted.identity,
            "scaling": fitted.scaling._asdict(),
            "present": fitted.present,
            "template": fitted.template.describe(),
            "seed": fitted.seed,
            "names": names,
            "output_shape": list(fitted.output_shape),
            "n_latents": model.n_latents,
            "effective_outputs": getattr(model, "effective_outputs", None),
            "jitter": model.jitter,
            "elbo": fitted.bound,
            "losses": fitted.losses,
            "restarts": fitted.runs,
            "selection": fitted.selection,
            "widening": fitted.widening._asdict() | {"places": fitted.widening.places._asdict()},
            "latent_scores": fitted.latent_scores,
            "kernel_evidence": fitted.kernel_evidence,
            "training_identity": fitted.training_identity,
            "output_scales": _describe_scales(fitted.output_scales),
        },
    )


def read_fit(
    path: str | Path, Y: Any, kernels: dict[str, Kernel | None], device: str | torch.device | None
) -> tuple[FittedNetwork, dict[str, Any], list[str]]:
    """Reads a fit, the settings of its estimator and the names of the input columns from a file.

    :param path: the file.
    :param Y: the training outputs, if they are not in the file.
    :param kernels: ``kernel_f`` and ``kernel_w``, in place of those that a file cannot hold; otherwise None.
    :param device: the device to put the fit on; None takes the one in the file's settings.
    """
    tree = read_archive(path, _KIND)
    given = None if Y is None else Y if tree.get("lazy") is not None else read_outputs(Y)
    with reading(path):
        _check_types(tree)
        settings = dict(tree["settings"])
        settings["device"] = _usable_device(settings["device"] if device is None else device)
        for name in (
            "output_scales",
            "own_kernels",
            "selection",
        ):  # which older files do not know, nor did their predictions
            settings.setdefault(name, False)
        settings.setdefault("inducing", None)
        settings |= {name: _rebuild_setting(tree, name, kernels[name]) for name in _KERNELS}
        return _rebuild_fit(tree, settings, given, kernels, path), settings, list(tree["names"])


def _rebuild_fit(
    tree: dict[str, Any],
    settings: dict[str, Any],
    Y: Any,
    kernels: dict[str, Kernel | None],
    path: str | Path,
) -> FittedNetwork:
    where = torch.device(settings["device"] or "cpu")
    made = {name: _rebuild(tree["kernels"][name], kernels[name], name, path) for name in _KERNELS}
    # Files that do not name it have the inference that was asked for; folds may have found another better.
    asked_for = find_inference(settings["inference"]).name
    inference, state = find_inference(tree.get("inference", asked_for)), tree["model"]
    scaling = Scaling(*(part.to(where) for part in Scaling(**tree["scaling"])))
    output_shape, present = tuple(tree["output_shape"]), tree.get("present")
    coordinates: WhiteCoordinates | None = None
    outputs: OutputSource
    if tree.get("lazy") is not None:
        known, outputs, coordinates = rebuild_lazy(tree["lazy"], Y, scaling, present, output_shape, path)
    else:
        known, outputs = _find_outputs(tree, Y, scaling, present, output_shape, where, path)
    model = inference.make_model(
        state["X"].to(where),
        tuple(known.source.shape[1:]),
        tree["n_latents"],
        made["kernel_f"],
        made["kernel_w"],
        tree["effective_outputs"],
        _OF_EACH in tree["kernels"]["kernel_w"],
        None if state.get("Z") is None else state["Z"].to(where),
    )
    model.jitter = float(tree.get("jitter", _FORMER_JITTER))
    if not 0.0 <= model.jitter < 1.0:
        raise ValueError(f"its jitter is {model.jitter}")
    model.load_state_dict(state)
    guide = inference.guide(model) if tree["guide_mean"] is None else inference.guide(model, mean=tree["guide_mean"])
    guide.load_state_dict(tree["guide"])
    widening = _rebuild_widening(tree.get("widening", 1.0))
    return FittedNetwork(
        model=model,
        guide=guide,
        known=known,
        outputs=outputs,
        scaling=scaling,
        template=_rebuild_template(tree, output_shape),
        output_shape=output_shape,
        present=present,
        kernels={name: settings[name] for name in _KERNELS},
        seed=tree["seed"],
        runs=tree["restarts"],
        bound=tree["elbo"],
        losses=tree["losses"],
        selection=list(tree.get("selection", [])),
        widening=widening,
        latent_scores={int(K): score for K, score in tree["latent_scores"].items()},
        kernel_evidence=tree.get("kernel_evidence", {}),
        training_identity=tree.get("training_identity"),
        coordinates=coordinates,
        scales=_rebuild_scales(tree.get("output_scales"), widening, where),
    )


def _check_types(tree: dict[str, Any]) -> None:
    """Refuses, inside :func:`~pyro_gprn.archive.reading`, what is read later than the file is."""
    kinds = {"settings": dict, "seed": int, "names": list, "losses": Tensor, "restarts": list, "latent_scores": dict}
    for name, kind in kinds.items():
        if not isinstance(tree[name], kind):
            raise TypeError(f"its {name} is a {type(tree[name]).__name__}, not a {kind.__name__}")
    if not all(isinstance(name, str) for name in tree["names"]):
        raise TypeError("its names are not strings")
    if tree["names"] and len(tree["names"]) != tree["model"]["X"].shape[1]:
        raise ValueError(f"it names {len(tree['names'])} input columns of {tree['model']['X'].shape[1]}")
    for run in tree["restarts"]:
        parts = {"bound": float, "model": dict, "guide": dict}
        if not all(isinstance(run[name], kind) for name, kind in parts.items()):
            raise TypeError("what it says of its restarts is no training run")
    if not tree["restarts"]:
        raise ValueError("it has no training run")


def _rebuild_template(tree: dict[str, Any], output_shape: tuple[int, ...]) -> Template:
    template = Template.rebuild(tree["template"])
    if int(np.prod(template.shape)) != int(np.prod(output_shape)):
        raise ValueError(f"its template is of outputs {template.shape}, and its model of outputs {output_shape}")
    return template


def _describe_scales(scales: Scales | None) -> dict[str, Any] | None:
    if isinstance(scales, OutputScales):
        return {name: value for name, value in scales._asdict().items() if name != "widening"}  # the fit has it
    return None if scales is None else {"prior_degrees": scales.prior_degrees}  # the rest is made again


def _rebuild_widening(saved: Any) -> Widening:
    if not isinstance(saved, dict):  # there was one factor for all
        return Widening.same(float(saved))
    lower, upper = saved["spreads"]
    others, most, holes = (float(saved[name]) for name in ("others", "most", "holes"))
    places = Places(**{name: float(value) for name, value in saved.get("places", {}).items()})
    return Widening(others, most, (float(lower), float(upper)), holes, places)


def _rebuild_scales(
    saved: dict[str, Any] | None, widening: Widening, device: torch.device
) -> OutputScales | float | bool:
    if saved is None:
        return False
    if "squares" not in saved:
        return float(saved["prior_degrees"])
    degrees, squares = (saved[name].to(device) for name in ("degrees", "squares"))
    factors, spread = (
        each.to(device) if isinstance(each, Tensor) else float(each)
        for each in (saved.get("factors", widening.others), saved.get("spread", 1.0))
    )
    return OutputScales(degrees, squares, saved["prior_degrees"], factors, widening, spread)


def _find_outputs(
    tree: dict[str, Any],
    Y: Tensor | None,
    scaling: Scaling,
    present: Tensor | None,
    output_shape: tuple[int, ...],
    device: torch.device,
    path: str | Path,
) -> tuple[OutputStatistics, OutputSource]:
    """The statistics of the standardised outputs, and a source that reads the outputs as they came."""
    if tree.get("outputs") is not None:  # a file of the first version holds them standardised
        scaled = ArrayOutputs(tree["outputs"].to(device)).reshape(Size(output_shape))
        raw = StandardizedOutputs(scaled, -scaling.y_mean / scaling.y_scale, 1.0 / scaling.y_scale)
        return OutputStatistics.of(scaled), raw
    values = tree.get("Y")
    if values is None:
        if Y is None:
            raise ArchiveError(f"{path} was saved without its training outputs: pass the same Y, load(path, Y=Y)")
        values = Y
    if values[0].numel() != int(np.prod(output_shape)):
        raise _other_outputs(path)
    outputs = ArrayOutputs(values.reshape(len(values), -1).to(device)).reshape(Size(output_shape))
    if Y is not None and not _is_the_same(outputs, tree, scaling):
        raise _other_outputs(path)
    standardized = StandardizedOutputs(outputs, scaling.y_mean, scaling.y_scale, present)
    has_inducing = tree["model"].get("Z") is not None
    return (CompressedStatistics if has_inducing else OutputStatistics).of(standardized), outputs


def _is_the_same(outputs: OutputSource, tree: dict[str, Any], scaling: Scaling) -> bool:
    if "Y" in tree:
        return outputs.digest() == tree["digest"]
    scale = scaling.y_scale.to(outputs.dtype)  # version 1: fingerprint of the standardised outputs, in Y's type
    scaled = (outputs.read(slice(None)) - scaling.y_mean.to(outputs.dtype)).div_(scale)
    return digest(scaled) == tree["digest"]


def _other_outputs(path: str | Path) -> ArchiveError:
    return ArchiveError(f"Y is not what the estimator in {path} was fitted to: its values, shape or type differ")


def _usable_device(device: Any) -> str | None:
    """The device as a word, or None (the CPU) if this machine does not have it."""
    if device is None:
        return None
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # torch raises either where it was built without it
        return None
    return str(device)


def _plain_setting(value: Any) -> Any:
    """A constructor's argument as a file can hold it."""
    if isinstance(value, (Path, torch.device)):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _describe_setting(kernel: Kernel | str | None) -> Any:
    """The setting ``kernel_f`` or ``kernel_w`` as it was given: words, None, or a Pyro kernel with its values."""
    if not isinstance(kernel, Kernel):
        return kernel
    return {"structure": _describe(kernel), "state": kernel.state_dict()}


def _rebuild_setting(tree: dict[str, Any], name: str, given: Kernel | None) -> Any:
    described = tree.get("kernel_settings", tree["settings"]).get(name)
    if not isinstance(described, dict):
        return described
    if given is not None:
        return given
    if "own" in described["structure"]:
        return None  # the model's kernel is asked for, and refused, elsewhere
    kernel = rebuild_kernel(described["structure"])
    kernel.load_state_dict(described["state"])
    return kernel


def _describe(kernel: Kernel) -> dict[str, Any]:
    shared = shared_kernel(kernel)
    if shared is not kernel:
        return {_OF_EACH: _describe(shared)}
    try:
        return describe_kernel(kernel)
    except ValueError:
        return {"own": type(kernel).__name__}  # to be given again


def _rebuild(description: dict[str, Any], given: Kernel | None, name: str, path: str | Path) -> Kernel:
    if given is not None:
        return given
    description = description.get(_OF_EACH, description)
    if "own" in description:
        raise ArchiveError(
            f"{name} in {path} is a {description['own']}, which a file without code cannot hold: pass one,"
            f" load(path, {name}=...)"
        )
    return rebuild_kernel(description)
