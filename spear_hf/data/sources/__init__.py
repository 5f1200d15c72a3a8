"""Where images come from: a `datasets` Dataset, files on disk, or the Hub; clean, or corrupted already."""

from spear_hf.data.sources.columns import MISSING, Columns
from spear_hf.data.sources.dataset_rows import RowSource
from spear_hf.data.sources.image_source import ImageSource
from spear_hf.data.sources.opening import open_source
from spear_hf.data.sources.repository import LAYOUTS

__all__ = ["LAYOUTS", "MISSING", "Columns", "ImageSource", "RowSource", "open_source"]
