"""One image under every corruption and severity, side by side."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from spear_hf.data.load_stream import load_stream

SEVERITIES = (1, 2, 3, 4, 5)
MARGIN, LABEL, FONT_SIZE = 6, 170, 16  # pixels


def contact_sheet(
    image: Image.Image | np.ndarray,
    preset: str = "auto",
    *,
    corruptions: str = "all, extra",
    tile: int = 160,
    seed: int = 0,
) -> Image.Image:
    """An image with a row for each corruption and a column for the clean image and each severity.

    >>> import numpy as np
    >>> from spear_hf.data.contact_sheet import contact_sheet
    >>> contact_sheet(np.zeros((32, 32, 3), np.uint8), corruptions="contrast", tile=32).size
    (398, 70)

    Args:
        image: one image, RGB.
        preset: as for `load_stream`; it decides the constants, the crop and the JPEG.
        corruptions: the rows.
        tile: side of a cell, in pixels; small images are enlarged without smoothing.
        seed: of the corruptions.
    """
    from datasets import Dataset

    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    stream = load_stream(
        Dataset.from_dict({"image": [picture]}),
        corruptions=["clean", *corruptions.split(",")],
        severity=SEVERITIES,
        preset=preset,
        seed=seed,
    )
    cells = {batch["domain"]: Image.fromarray(batch["pixel_values"][0].numpy()) for batch in stream}
    names = list(dict.fromkeys(domain.split("/")[0] for domain in cells if domain != "clean"))
    step = tile + MARGIN
    sheet = Image.new("RGB", (LABEL + step * (1 + len(SEVERITIES)), 2 * FONT_SIZE + step * len(names)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(FONT_SIZE)
    for column, title in enumerate(("clean", *(f"severity {severity}" for severity in SEVERITIES))):
        draw.text((LABEL + step * column, FONT_SIZE // 2), title, "black", font)
    for row, name in enumerate(names):
        top = 2 * FONT_SIZE + step * row
        draw.text((MARGIN, top + tile // 2 - FONT_SIZE), name, "black", font)
        for column, domain in enumerate(("clean", *(f"{name}/{severity}" for severity in SEVERITIES))):
            sheet.paste(_fit(cells[domain], tile), (LABEL + step * column, top))
    return sheet


def _fit(image: Image.Image, side: int) -> Image.Image:
    is_small = max(image.size) < side
    return image.resize((side, side), Image.Resampling.NEAREST if is_small else Image.Resampling.LANCZOS)
