"""Images whose objects are destroyed: what DeYO compares a prediction with."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from spear_hf.baselines.dice import Dice
from spear_hf.baselines.part import Part
from spear_hf.errors import ConfigError

KINDS = ("patch", "pixel", "occlusion")


@dataclass
class ObjectDestruction(Part):
    """Shuffles or covers parts of images, each image in its own way.

    Args:
        kind: "patch" permutes the cells of a grid, "pixel" all pixels, "occlusion" covers the middle quarter with the
            mean of its channel.
        grid: cells along each side.
        dice: what the permutations are drawn from.
    """

    kind: str = "patch"
    grid: int = 4
    dice: Dice = field(default_factory=Dice)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"destruction={self.kind!r} is not known; allowed are {', '.join(KINDS)}")

    def __call__(self, x: Tensor) -> Tensor:
        """(B, C, H, W), of the same size; patches are resized where the grid does not divide the side."""
        b, c, h, w = x.shape
        if self.kind == "occlusion":
            covered = x.clone()
            covered[:, :, h // 4 : h // 4 + h // 2, w // 4 : w // 4 + w // 2] = x.mean((2, 3), keepdim=True)
            return covered
        if self.kind == "pixel":
            order = self._orders(b, h * w).to(x.device)
            return x.flatten(2).gather(2, order[:, None].expand(-1, c, -1)).view_as(x)
        g = self.grid
        size = max(h // g, 1) * g, max(w // g, 1) * g
        whole = x if size == (h, w) else F.interpolate(x, size, mode="bilinear", align_corners=False)
        order = self._orders(b, g * g).to(x.device)
        cells = whole.view(b, c, g, size[0] // g, g, size[1] // g).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
        cells = cells[torch.arange(b, device=x.device)[:, None], order]
        mixed = cells.unflatten(1, (g, g)).permute(0, 3, 1, 4, 2, 5).reshape(b, c, *size)
        return mixed if size == (h, w) else F.interpolate(mixed, (h, w), mode="bilinear", align_corners=False)

    def _orders(self, images: int, count: int) -> Tensor:
        """(images, count): a permutation for each image."""
        return self.dice.rand(images, count).argsort(1)
