"""A forward of frozen layers that keeps for the backward pass only what the gradient of their input needs.

PyTorch keeps the input of every convolution, batch norm and activation, also where the weights are frozen and nothing
will ever read it. Inside `LeanForward` these layers keep a scale for each channel, one byte for each ReLU, two and a
half for each GELU, and of an attention its inputs but not its output. Where one token alone has a gradient, one alone
is multiplied by the weights. All outputs are the same bits; no module is touched, only the functions that modules call.
"""

from spear_hf.lean.mode import LeanForward

__all__ = ["LeanForward"]
