"""The crop that ImageNet-C was made from: its constants are in pixels of a 224 x 224 image."""

import numpy as np
from PIL import Image

SHORT_SIDE, CROP = 256, 224


def crop_imagenet(image: np.ndarray) -> np.ndarray:
    """(224, 224, 3) uint8: short side to 256 (bilinear), centre 224; an image of 224 x 224 stays as it is."""
    height, width, _ = image.shape
    if (height, width) == (CROP, CROP):
        return image
    short = min(height, width)
    size = (width * SHORT_SIDE // short, height * SHORT_SIDE // short)
    resized = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))
    top, left = (round((side - CROP) / 2) for side in resized.shape[:2])
    return resized[top : top + CROP, left : left + CROP]
