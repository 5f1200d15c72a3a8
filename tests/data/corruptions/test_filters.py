"""The Gaussian filter equals SciPy's."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from spear_hf.data.corruptions.filters import gaussian_filter


@pytest.mark.parametrize(("mode", "theirs"), [("nearest", "nearest"), ("reflect", "reflect"), ("mirror", "mirror")])
@pytest.mark.parametrize("sigma", [0.05, 0.7, 2.44, 19.5])
def test_gaussian_filter_equals_scipy(sigma: float, mode: str, theirs: str, rng: np.random.Generator) -> None:
    image = rng.random((48, 40))
    ours = gaussian_filter(torch.from_numpy(image)[None], sigma, 3.0, mode)[0].numpy()
    expected = ndimage.gaussian_filter(image, sigma, truncate=3.0, mode=theirs)
    np.testing.assert_allclose(ours, expected, atol=1e-12)
