"""A forward of frozen layers that keeps for the backward pass only what the gradient of their input needs.

PyTorch keeps the input of every convolution, batch norm and activation for the gradients of the weights, even where the
weights are frozen. Inside `LeanForward` less is kept:

| layer | kept by PyTorch | kept here |
|---|---|---|
| convolution | x | nothing but the weight |
| batch norm (evaluation mode) | x | one number for each channel |
| ReLU, ReLU6, hardtanh | y or x, 4 bytes for each value | 1 byte for each |
| GELU, SiLU | x, 4 bytes for each value | 2.5 bytes for each |
| attention without a mask | q, k, v and y | q, k and v |

Linear layers and attention also skip, on a CPU, the tokens that have no gradient. Outputs are the same bits, and
gradients are the same up to rounding. No module changes: a TorchFunctionMode replaces the functions that modules call.
`affine`, `activation` and `attention` hold the replacements, `flow` the conditions for them.
"""

from spear_hf.lean.mode import LeanForward

__all__ = ["LeanForward"]
