"""Augmentation: the image transform that CoTTA, RoTTA, ROID and CMF ask their consistency of, drawn from a seed.

Clip, jitter of brightness, contrast, saturation, hue and gamma in random order, a small rotation, shift and zoom of the
reflected image, blur, mirror, noise. One draw for a whole batch.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from spear_hf.baselines.dice import Dice
from spear_hf.baselines.part import Part
from spear_hf.baselines.pixels import Pixels


@dataclass
class Augmentation(Part):
    """A random view of images that are normalised for a model.

    Args:
        pixels: their normalisation.
        blur: whether there is Gaussian blur and noise too, as for CoTTA and RoTTA.
        dice: what all is drawn from.
    """

    pixels: Pixels
    blur: bool = True
    dice: Dice = field(default_factory=Dice)

    def __call__(self, x: Tensor) -> Tensor:
        """(B, C, H, W), of the same size and scale."""
        view = self._moved(self._jittered(self.pixels.pixels(x).clamp(0, 1)))
        if self.dice.uniform(0, 1) < 0.5:
            view = view.flip(-1)
        if self.blur:
            view = view + 0.005 * self.dice.normal(*view.shape).to(view)
        return self.pixels.normalized(view.clamp(0, 1)).to(x.dtype)

    def _jittered(self, pixels: Tensor) -> Tensor:
        """Five changes of colour in random order; gamma alone where there are neither one nor three channels."""
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
        """Up to 15 degrees, a sixteenth of the padded side and a tenth of the size, then blurred and cropped."""
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2 import functional as V

        h, w = pixels.shape[2:]
        padded = F.pad(pixels, (w // 2, w // 2, h // 2, h // 2), mode="reflect")
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
