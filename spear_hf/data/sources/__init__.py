"""Where images come from: a `datasets` Dataset, a parquet file, a folder of images, or the Hub."""

from spear_hf.data.sources.opening import open_source
from spear_hf.data.sources.source import Source

__all__ = ["Source", "open_source"]
