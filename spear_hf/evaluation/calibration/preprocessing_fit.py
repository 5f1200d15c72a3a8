"""PreprocessingFit: whether clean images look to a model as its training images did, by its own statistics.

A model whose images are normalised with another mean and standard deviation than it was trained with loses points
without a word. Batch norms remember what they were trained on: on clean images, the means of the first half of them
are near the running ones, and with the wrong preprocessing they are far. A model without batch norms tells by its
answers, which are surer and still varied with the right one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spear_hf.data.processor import load_processor
from spear_hf.errors import DataError
from spear_hf.evaluation.calibration.clean_images import CleanImages, shown
from spear_hf.learning.objective import log_probabilities
from spear_hf.steering.mixing import batch_norms
from spear_hf.utils.batch import logits_of

FAR = 0.03  # of a shift, in variances: below it errors differ by a point (benchmarks/results/calibrate.md)
UNLIKE = 0.3  # a shift that is told of even where no usual mean and standard deviation fits better
LESS_TOLD = 0.03  # of what answers tell, in nats: two ways that differ by less are taken as one
MOST_IMAGES = 128  # that are looked at

Values = tuple[float, ...]

USUAL: dict[str, tuple[Values, Values]] = {
    "0.5": ((0.5,) * 3, (0.5,) * 3),
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CIFAR": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "CLIP": ((0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758)),
    "pixels in [0, 1]": ((0.0,) * 3, (1.0,) * 3),
    "pixels in [0, 255]": ((0.0,) * 3, (1 / 255,) * 3),
}
"""What models are usually trained with."""


@dataclass(frozen=True)
class PreprocessingFit:
    """How a model sees clean images under one mean and standard deviation.

    Args:
        name: what it is called: "given", "the model's own", or a name in USUAL.
        mean: per channel, for pixels in [0, 1].
        std: likewise.
        shift: how far the images are from what the first half of the batch norms remember: the squared distance of the
            channels' means, in units of the remembered variance, less what chance makes of it; None without batch
            norms.
        told: what an answer tells about an image: mutual information of images and answers, in nats.

    >>> from spear_hf.evaluation.calibration.preprocessing_fit import PreprocessingFit
    >>> PreprocessingFit("given", (0.5,), (0.5,), 0.01, 2.1).shift
    0.01
    """

    name: str
    mean: Values
    std: Values
    shift: float | None
    told: float


def preprocessing_fits(model: nn.Module, images: CleanImages) -> list[PreprocessingFit]:
    """The fit of the images as they were given, and then of each other usual mean and standard deviation.

    >>> import torch, timm
    >>> from spear_hf import load_processor
    >>> from spear_hf.evaluation.calibration.clean_images import CleanImages
    >>> from spear_hf.evaluation.calibration.preprocessing_fit import preprocessing_fits
    >>> net = timm.create_model("test_resnet").eval()
    >>> given = load_processor(None, mean=[0.0] * 3, std=[1.0] * 3, size=32)
    >>> clean = CleanImages.read([torch.rand(64, 3, 32, 32)], net, processor=given)
    >>> [fit.name for fit in preprocessing_fits(net, clean)][:2]
    ['given', "the model's own"]

    Args:
        model: an image classifier, which is only called.
        images: clean ones.
    """
    found: list[PreprocessingFit] = []
    for name, (mean, std) in _candidates(model, images):
        if not any(_is_near(fit, mean, std) for fit in found):
            found.append(PreprocessingFit(name, mean, std, *_seen(model, images, mean, std)))
    return found


def preprocessing_warning(fits: Sequence[PreprocessingFit]) -> str | None:
    """What to tell about the first of these fits where another is better; None where all is well.

    >>> from spear_hf.evaluation.calibration.preprocessing_fit import PreprocessingFit, preprocessing_warning
    >>> right = PreprocessingFit("0.5", (0.5,), (0.5,), 0.01, 2.1)
    >>> preprocessing_warning([PreprocessingFit("given", (0.4,), (0.2,), 0.2, 1.9), right])
    'preprocessing looks wrong: with mean 0.4, std 0.2 the first batch norms are 0.200 from what they were trained ...'
    """
    given, *others = fits
    if not others:
        return None
    if given.shift is None:
        best = max(others, key=lambda fit: fit.told)
        if best.told - given.told < LESS_TOLD:
            return None
        facts = f"an answer tells {given.told:.2f} nats about its image, with {_named(best)} {best.told:.2f}"
        return f"preprocessing looks wrong: with {_shown(given)} {facts}; {_way_out(best)}"
    best = min(others, key=lambda fit: fit.shift or 0.0)
    if best.shift is None or given.shift < FAR:
        return None
    far = f"the first batch norms are {given.shift:.3f} from what they were trained on"
    if best.shift > given.shift / 2:
        way_out = "look up the mean, std and size that the model was trained with"
        return None if given.shift < UNLIKE else f"images look unlike those of the training: {far}; {way_out}"
    return (
        f"preprocessing looks wrong: with {_shown(given)} {far}, with {_named(best)} {best.shift:.3f}; {_way_out(best)}"
    )


def _shown(fit: PreprocessingFit) -> str:
    return f"mean {shown(fit.mean)}, std {shown(fit.std)}"


def _named(fit: PreprocessingFit) -> str:
    return f"{_shown(fit)} ({fit.name})"


def _way_out(best: PreprocessingFit) -> str:
    return f"nothing was changed; if the model was trained so, pass mean={shown(best.mean)} and std={shown(best.std)}"


def _candidates(model: nn.Module, images: CleanImages) -> Iterable[tuple[str, tuple[Values, Values]]]:
    yield "given", (images.mean, images.std)
    try:
        own = load_processor(model)
        yield "the model's own", (own.mean, own.std)
    except DataError:  # it has none
        pass
    for name, (mean, std) in USUAL.items():
        grey = len(images.mean) == 1
        yield name, ((sum(mean) / 3,), (sum(std) / 3,)) if grey else (mean, std)


def _is_near(fit: PreprocessingFit, mean: Values, std: Values) -> bool:
    return all(abs(a - b) < 0.002 for a, b in zip((*fit.mean, *fit.std), (*mean, *std), strict=True))


@torch.no_grad()
def _seen(model: nn.Module, images: CleanImages, mean: Values, std: Values) -> tuple[float | None, float]:
    """The shift and what answers tell, of at most MOST_IMAGES images."""
    norms = [norm for _, norm in batch_norms(model)]
    early = norms[: -(-len(norms) // 2)]
    seen: dict[nn.Module, list[Tensor]] = {norm: [] for norm in early}
    hooks = [norm.register_forward_pre_hook(lambda m, args: seen[m].append(_image_means(m, args[0]))) for norm in early]
    try:
        parts = images.pixels[:MOST_IMAGES].split(images.batch_size)
        logits = torch.cat([logits_of(model(images.inputs(part, mean, std))) for part in parts])
    finally:
        for hook in hooks:
            hook.remove()
    shifts = [_shift(torch.cat(rows)) for rows in seen.values() if rows]
    log_p = log_probabilities(logits).double()
    marginal = log_p.exp().mean(0)
    told = (log_p.exp() * log_p).sum(1).mean() - torch.special.xlogy(marginal, marginal).sum()
    return (sum(shifts) / len(shifts) if shifts else None), float(told)


def _image_means(norm: nn.Module, x: Tensor) -> Tensor:
    """(B, C), each image's mean of each channel, standardised by what the norm remembers."""
    means = x.float().flatten(2).mean(2) if x.dim() > 2 else x.float()
    remembered: tuple[Tensor, Tensor] = norm.running_mean, norm.running_var  # pyright: ignore[reportAssignmentType]
    return (means - remembered[0]) / torch.sqrt(remembered[1] + norm.eps)  # pyright: ignore[reportOperatorIssue]


def _shift(rows: Tensor) -> float:
    """The squared mean of (N, C) standardised image means, averaged over the channels, less what chance makes of it."""
    variance, mean = torch.var_mean(rows.double(), 0)
    return float((mean.square() - variance / len(rows)).mean())
