"""Every error that this package raises on purpose.

    SpearError
    ├── ConfigError             (ValueError)           a configuration value or key that is not allowed
    ├── InputError              (ValueError)           a batch that must not be predicted or learned from
    ├── DataError               (ValueError)           a stream, column, label, corruption or image file that is invalid
    ├── ModelNotFoundError      (ValueError)           a base model name that is no folder, Hub id or timm architecture
    ├── BoundaryError
    │   ├── NoBoundariesError       (ValueError)       no verified stage boundaries in this model
    │   ├── BoundaryNotFoundError   (ValueError)       a depth, name or module path that this model does not have
    │   ├── BoundaryNotFiredError   (RuntimeError)     an active RSP that ran zero or several times in one forward
    │   └── UnsupportedOutputError  (TypeError)        a boundary whose output holds no tensor with a channel axis
    ├── CompiledBaseError       (RuntimeError)         a base that torch.compile has already traced cannot be steered
    ├── AlreadySteeredError     (ValueError)           a base that carries RSPs already cannot be steered again
    ├── AdapterError
    │   ├── AdapterNameError        (ValueError)       a name that is empty, taken, reserved, or has a dot or slash
    │   ├── AdapterNotFoundError    (KeyError)         a name that this model does not hold
    │   ├── AdapterFormatError      (ValueError)       files that are not a SPeaR adapter, or of a newer format
    │   ├── AdapterLoadError        (ValueError)       tensors that are missing, unexpected, misshapen or not finite
    │   ├── AdapterSaveError        (ValueError)       a state that must not be saved, or a folder not to save into
    │   └── BaseModelMismatchError  (ValueError)       an adapter that was learned on another base
    ├── CheckpointError         (ValueError)           a checkpoint of another run, or one that cannot be accessed
    ├── OutputError             (OSError)              a file that cannot be written: a full or read-only disk
    ├── ExportError             (RuntimeError)         a model that cannot be written as a file of another library
    ├── MergeError              (NotImplementedError)  RSPs cannot be merged into the weights
    └── LaunchError             (RuntimeError)         processes that did not start, or an unsupported wrapper

The second base class is what a user of torch, PEFT or the Hub would already catch. A message has three parts: the value
that came, what is allowed, and the way out. Nothing is changed when one of these errors is raised.
"""


class SpearError(Exception):
    """The base class of every error that this package raises on purpose.

    >>> from spear_hf import SpearConfig, SpearError
    >>> try:
    ...     SpearConfig(alpha=2)
    ... except SpearError as error:
    ...     print(error)
    alpha=2 is not allowed; alpha is a number in [0, 1]; the default is 0.5
    """


class ConfigError(SpearError, ValueError):
    """A configuration value or key that is not allowed."""


class InputError(SpearError, ValueError):
    """A batch that must not be predicted or learned from."""


class DataError(SpearError, ValueError):
    """A stream, column, label, corruption or image file that is invalid."""


class ModelNotFoundError(SpearError, ValueError):
    """A base model name that is no folder, Hub id or timm architecture."""


class BoundaryError(SpearError):
    """An error about a stage boundary."""


class NoBoundariesError(BoundaryError, ValueError):
    """No verified stage boundaries were found in a model."""


class BoundaryNotFoundError(BoundaryError, ValueError):
    """A depth, name or module path that a model does not have."""


class BoundaryNotFiredError(BoundaryError, RuntimeError):
    """An active RSP ran zero or several times in one forward."""


class UnsupportedOutputError(BoundaryError, TypeError):
    """A boundary whose output holds no tensor with a channel axis."""


class CompiledBaseError(SpearError, RuntimeError):
    """A base that is already compiled cannot be steered."""


class AlreadySteeredError(SpearError, ValueError):
    """A base that carries RSPs already cannot be steered again."""


class AdapterError(SpearError):
    """An error about a named adapter or its files."""


class AdapterNameError(AdapterError, ValueError):
    """An adapter name that is empty, taken, reserved, or has a dot or slash."""


class AdapterNotFoundError(AdapterError, KeyError):
    """An adapter name that a model does not hold."""

    def __str__(self) -> str:  # KeyError prints the repr of its message
        return str(self.args[0]) if self.args else ""


class AdapterFormatError(AdapterError, ValueError):
    """Files that are not a SPeaR adapter, or of a newer format."""


class AdapterLoadError(AdapterError, ValueError):
    """Adapter tensors that are missing, unexpected, misshapen or not finite."""


class AdapterSaveError(AdapterError, ValueError):
    """A state that must not be saved, or a folder that must not be saved into."""


class BaseModelMismatchError(AdapterError, ValueError):
    """An adapter that was learned on another base model."""


class CheckpointError(SpearError, ValueError):
    """A checkpoint of another run, or one that cannot be read or written."""


class OutputError(SpearError, OSError):
    """A file that cannot be written: a full or read-only disk, or a path that leads through a file."""


class ExportError(SpearError, RuntimeError):
    """A model that cannot be written as a file of another library, or whose file answers otherwise."""


class MergeError(SpearError, NotImplementedError):
    """RSPs cannot be merged into the weights of the base."""


class LaunchError(SpearError, RuntimeError):
    """Processes that were asked for did not start, or a wrapper that is not supported."""
