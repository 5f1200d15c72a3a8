"""Where images come from: a `datasets` Dataset, files on disk, or the Hub; clean, or corrupted already."""

from spear_hf.data.sources.columns import Columns
from spear_hf.data.sources.layouts import LAYOUTS
from spear_hf.data.sources.opening import open_source
from spear_hf.data.sources.source import Source

__all__ = ["LAYOUTS", "Columns", "Source", "open_source"]
