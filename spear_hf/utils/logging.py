"""How much the package says, as in transformers and datasets: `spear_hf.logging.set_verbosity_info()`.

It uses the standard `logging`: every module has a logger of its own below "spear_hf". A program that configures logging
itself needs nothing from here.
"""

import logging
import os

NAME = "spear_hf"
VARIABLE = "SPEAR_HF_VERBOSITY"
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


def get_logger(name: str | None = None) -> logging.Logger:
    """The logger of the package, or of one of its modules.

    >>> from spear_hf.utils.logging import get_logger
    >>> get_logger().name
    'spear_hf'
    """
    return logging.getLogger(name or NAME)


def get_verbosity() -> int:
    """The level in force, a number of the standard `logging`."""
    return get_logger().getEffectiveLevel()


def set_verbosity(level: int) -> None:
    """Show messages of this level and above on stderr, where no handler of the program's own shows them.

    >>> import logging
    >>> from spear_hf.utils.logging import get_verbosity, set_verbosity
    >>> set_verbosity(logging.ERROR); get_verbosity() == logging.ERROR
    True
    >>> set_verbosity(logging.WARNING)
    """
    logger = get_logger()
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(level)


def set_verbosity_debug() -> None:
    """Show everything."""
    set_verbosity(logging.DEBUG)


def set_verbosity_info() -> None:
    """Show what is done: how labels were matched, which weights were taken."""
    set_verbosity(logging.INFO)


def set_verbosity_warning() -> None:
    """Show what may go wrong; the default."""
    set_verbosity(logging.WARNING)


def set_verbosity_error() -> None:
    """Show failures alone."""
    set_verbosity(logging.ERROR)


def verbosity_from_environment() -> None:
    """Set the verbosity that SPEAR_HF_VERBOSITY names, if it names one; the command does this."""
    if (word := os.environ.get(VARIABLE, "").lower()) in LEVELS:
        set_verbosity(LEVELS[word])
