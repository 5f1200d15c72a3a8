"""Teach SPeaR an architecture that the boundary search does not know: a boundary rule in ten lines.

    python examples/new_architecture.py

The transformer below runs one layer six times. A hook on that layer would steer six times, so the search refuses the
model. The rule names the two tensors that exist once. The result of a rule is verified like that of the search, and the
probe fills in channels and axis.
"""

import torch
from torch import Tensor, nn

from spear_hf import Boundary, Spear, SpearConfig, boundary_rule, find_boundaries, get_spear_model
from spear_hf.errors import NoBoundariesError


class WeightTiedViT(nn.Module):
    """A patch embedding, one transformer layer that is applied `steps` times, a norm and a linear head."""

    def __init__(self, width: int = 48, steps: int = 6, num_classes: int = 10) -> None:
        super().__init__()
        self.steps = steps
        self.embed = nn.Conv2d(3, width, 8, 8)
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        for _ in range(self.steps):
            tokens = self.layer(tokens)
        return self.head(self.norm(tokens).mean(1))


net = WeightTiedViT()
try:
    find_boundaries(net)
except NoBoundariesError as error:
    print(f"Without a rule: {error}\n")


@boundary_rule(WeightTiedViT)
def weight_tied_vit(model: nn.Module, num_groups: int | None) -> list[Boundary]:
    """The embedded patches and the output of the last round; the layer between them runs too often for a hook."""
    return [
        Boundary(depth=0, name="stem", module="embed"),
        Boundary(depth=1, name="rounds", module="norm"),
    ]


print("With the rule:")
for boundary in find_boundaries(net):
    print(
        f"  {boundary.depth} {boundary.name:8} {boundary.module:8} {boundary.channels} on axis {boundary.channel_axis}"
    )

model = get_spear_model(net, SpearConfig(boundaries="all"))
model.print_trainable_parameters()
logits = Spear(model).step(torch.randn(16, 3, 64, 64))  # predicts first, then learns
print(f"Predicted {len(logits)} images; the network itself is unchanged after model.unload().")
