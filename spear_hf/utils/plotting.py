"""Matplotlib figures without a window; matplotlib is imported only when a figure is made."""

from pathlib import Path
from typing import TYPE_CHECKING

from spear_hf.errors import ConfigError
from spear_hf.utils.files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches, which belongs to no window.

    >>> from spear_hf.utils.plotting import new_figure
    >>> new_figure(4, 3).get_size_inches().tolist()
    [4.0, 3.0]

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('figures need matplotlib, which is not installed; pip install "spear-hf[plots]"') from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", path: str | Path, *, dpi: int = 150) -> Path:
    """Write a figure in the format of the suffix (png, svg, pdf), and return its path; the folder is made if missing.

    >>> import tempfile
    >>> from spear_hf.utils.plotting import new_figure, save_figure
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(save_figure(new_figure(1, 1), f"{folder}/figures/empty.png", dpi=20).name)
    empty.png
    """
    path = Path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure_as_text(figure).savefig(path, dpi=dpi)
    return path


def figure_as_text(figure: "Figure") -> "Figure":
    """The same figure, whose texts are shown as they are: in a name from outside, `$x$` is no formula.

    >>> from spear_hf.utils.plotting import figure_as_text, new_figure
    >>> figure = new_figure(1, 1)
    >>> figure_as_text(figure) is figure
    True
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # pyright: ignore[reportAttributeAccessIssue]
    return figure
