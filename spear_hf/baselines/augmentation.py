"""Image transforms of the rivals: random views of normalised images, and images whose object is destroyed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spear_hf.baselines.component import Component, Dice
from spear_hf.errors import ConfigError, DataError

DESTRUCTIONS = ("patch", "pixel", "occlusion")
PADDINGS = {"edge": "replicate", "reflect": "reflect"}
"""name in the authors' code -> torch's name."""


@dataclass
class Normalization(Component):
    """A normalisation of images, x = (pixel - mean) / std, and its inverse.

    Args:
        mean: per channel, on the [0, 1] scale.
        std: per channel, on the [0, 1] scale; above 0.

    >>> import torch
    >>> from spear_hf.baselines.augmentation import Normalization
    >>> Normalization((0.5,), (0.25,)).pixels(torch.ones(1, 1, 1, 2))
    tensor([[[[0.7500, 0.7500]]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise ConfigError(
                f"mean={self.mean}, std={self.std} are not allowed; give one number for each channel, std above 0"
            )

    def pixels(self, x: Tensor) -> Tensor:
        """Images on the [0, 1] scale; values outside it are not clipped."""
        return x * self._shaped(self.std, x) + self._shaped(self.mean, x)

    def normalized(self, pixels: Tensor) -> Tensor:
        """Images as the model takes them."""
        return (pixels - self._shaped(self.mean, pixels)) / self._shaped(self.std, pixels)

    @staticmethod
    def _shaped(values: tuple[float, ...], x: Tensor) -> Tensor:
        return torch.tensor(values, dtype=x.dtype, device=x.device).view(-1, 1, 1)


def normalization_of(
    model: nn.Module, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> Normalization:
    """The normalisation by `mean` and `std`, or the one that `model` carries if they are None.

    Raises:
        ConfigError: the model carries none. A normalised image that is augmented as if it were pixels is clipped and
            recoloured at random.

    >>> import timm
    >>> from spear_hf.baselines.augmentation import normalization_of
    >>> normalization_of(timm.create_model("test_resnet")).std
    (0.5, 0.5, 0.5)
    """
    if mean is not None and std is not None:
        return Normalization(tuple(mean), tuple(std))
    from spear_hf.data.processor import load_processor

    try:
        found = load_processor(model)
    except DataError as error:
        raise ConfigError(
            f"augmentations need images in [0, 1], and nothing says how they were normalised ({error}); here pass "
            "mean= and std= for each channel: (0, 0, 0) and (1, 1, 1) where the model normalises by itself"
        ) from error
    return Normalization(found.mean, found.std)


@dataclass
class Augmentation(Component):
    """A random view of normalised images, as CoTTA, RoTTA, ROID and CMF use it; one draw for the whole batch.

    The images are clipped to [0, 1]; brightness, contrast, saturation, hue and gamma change in random order; the image
    is padded by half its side, rotated, moved and zoomed a little, and cropped; then blur, mirror and noise.

    Args:
        normalization: of the images.
        blur: whether Gaussian blur and noise are added, as in CoTTA and RoTTA.
        padding: "edge" repeats the border, as in CoTTA and RoTTA; "reflect" mirrors the image, as in ROID and CMF.
        dice: draws the view.

    Raises:
        ConfigError: another padding.

    >>> import torch
    >>> from spear_hf.baselines.augmentation import Augmentation, Normalization
    >>> view = Augmentation(Normalization((0.5,) * 3, (0.5,) * 3))
    >>> view(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 3, 16, 16])
    """

    normalization: Normalization
    blur: bool = True
    padding: str = "edge"
    dice: Dice = field(default_factory=Dice)

    def __post_init__(self) -> None:
        if self.padding not in PADDINGS:
            raise ConfigError(f"padding={self.padding!r} is not known; allowed are {', '.join(PADDINGS)}")

    def __call__(self, x: Tensor) -> Tensor:
        """(B, C, H, W), of the same size and scale."""
        view = self._moved(self._jittered(self.normalization.pixels(x).clamp(0, 1)))
        if self.dice.uniform(0, 1) < 0.5:
            view = view.flip(-1)
        if self.blur:
            view = view + 0.005 * self.dice.normal(*view.shape).to(view)
        return self.normalization.normalized(view.clamp(0, 1)).to(x.dtype)

    def _jittered(self, pixels: Tensor) -> Tensor:
        """Five changes of colour in random order; only gamma if there are neither one nor three channels."""
        from torchvision.transforms.v2 import functional as V

        draw = self.dice.uniform
        changes: list[tuple[Any, float]] = [
            (V.adjust_brightness, draw(0.6, 1.4)),
            (V.adjust_contrast, draw(0.7, 1.3)),
            (V.adjust_saturation, draw(0.5, 1.5)),
            (V.adjust_hue, draw(-0.06, 0.06)),
            (V.adjust_gamma, draw(0.7, 1.3)),
        ]
        for i in self.dice.permutation(len(changes)):
            change, amount = changes[i]
            if pixels.shape[1] in (1, 3) or change is V.adjust_gamma:
                pixels = change(pixels, amount)
        return pixels

    def _moved(self, pixels: Tensor) -> Tensor:
        """Rotated by up to 15 degrees, moved by a sixteenth of the padded side, zoomed by a tenth, blurred, cropped."""
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2 import functional as V

        h, w = pixels.shape[2:]
        padded = F.pad(pixels, (w // 2, w // 2, h // 2, h // 2), mode=PADDINGS[self.padding])
        draw, far = self.dice.uniform, [s / 16 for s in padded.shape[:1:-1]]
        moved = V.affine(
            padded,
            angle=draw(-15, 15),
            translate=[float(round(draw(-d, d))) for d in far],
            scale=draw(0.9, 1.1),
            shear=[0.0, 0.0],
            interpolation=InterpolationMode.BILINEAR,
        )
        if self.blur:
            sigma = draw(0.001, 0.5)
            moved = V.gaussian_blur(moved, [5, 5], [sigma, sigma])
        return V.center_crop(moved, [h, w])


@dataclass
class ObjectDestruction(Component):
    """Shuffles or covers parts of each image, so that the shape of the object is lost (DeYO).

    Args:
        kind: "patch" permutes the cells of a grid, in each image otherwise; "pixel" permutes all pixels, in all images
            of the batch alike; "occlusion" covers the middle quarter with the mean of its channel.
        grid: cells along each side.
        antialias: whether images that the grid does not divide are filtered before they are resized. The authors' code
            does so with torchvision from 0.17 on; with the version 0.11 of their environment.yaml it does not.
        dice: draws the permutations.

    >>> import torch
    >>> from spear_hf.baselines.augmentation import ObjectDestruction
    >>> ObjectDestruction("patch", grid=2)(torch.arange(4.0).view(1, 1, 2, 2)).flatten().sort().values
    tensor([0., 1., 2., 3.])
    """

    kind: str = "patch"
    grid: int = 4
    antialias: bool = True
    dice: Dice = field(default_factory=Dice)

    def __post_init__(self) -> None:
        if self.kind not in DESTRUCTIONS:
            raise ConfigError(f"destruction={self.kind!r} is not known; allowed are {', '.join(DESTRUCTIONS)}")

    def __call__(self, x: Tensor) -> Tensor:
        """(B, C, H, W), of the same size; the image is resized for "patch" if the grid does not divide its side."""
        b, c, h, w = x.shape
        if self.kind == "occlusion":
            covered = x.clone()
            covered[:, :, h // 4 : h // 4 + h // 2, w // 4 : w // 4 + w // 2] = x.mean((2, 3), keepdim=True)
            return covered
        if self.kind == "pixel":
            return x.flatten(2)[:, :, self.dice.permutation(h * w)].reshape(x.shape)
        g = self.grid
        size = max(h // g, 1) * g, max(w // g, 1) * g
        resized = self._resized(x, size)
        order = self._orders(b, g * g).to(x.device)
        cells = resized.view(b, c, g, size[0] // g, g, size[1] // g).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
        cells = cells[torch.arange(b, device=x.device)[:, None], order]
        mixed = cells.unflatten(1, (g, g)).permute(0, 3, 1, 4, 2, 5).reshape(b, c, *size)
        return self._resized(mixed, (h, w))

    def _resized(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        if x.shape[2:] == size:
            return x
        return F.interpolate(x, size, mode="bilinear", align_corners=False, antialias=self.antialias)

    def _orders(self, images: int, count: int) -> Tensor:
        """(images, count): a permutation for each image."""
        return self.dice.rand(images, count).argsort(1)
