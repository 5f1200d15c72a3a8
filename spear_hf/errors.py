"""Every error this package raises on purpose.

    SpearError
    ├── ConfigError             (ValueError)           a SpearConfig value or key that is not allowed
    ├── InputError              (ValueError)           a batch that must not be answered or learned from
    ├── DataError               (ValueError)           a stream, column, label or image file that does not fit
    ├── ModelNotFoundError      (ValueError)           a base model name that is no folder, Hub id or timm name
    ├── BoundaryError
    │   ├── NoBoundariesError       (ValueError)       no verified stage boundaries in this model
    │   ├── BoundaryNotFoundError   (ValueError)       a depth, name or module path that this model does not have
    │   ├── BoundaryNotFiredError   (RuntimeError)     an active RSP that ran zero or several times in one forward
    │   └── UnsupportedOutputError  (TypeError)        a boundary whose output holds no tensor with a channel axis
    ├── CompiledBaseError       (RuntimeError)         attaching to a base that torch.compile has already traced
    ├── AlreadySteeredError     (ValueError)           attaching to a base that carries RSPs already
    ├── AdapterError
    │   ├── AdapterNameError        (ValueError)       a name that is empty, taken, reserved, dotted or slashed
    │   ├── AdapterNotFoundError    (KeyError)         a name that this model does not hold
    │   ├── AdapterFormatError      (ValueError)       files that are not a SPeaR adapter, or of a newer format
    │   ├── AdapterLoadError        (ValueError)       tensors that are missing, unexpected, misshapen or non-finite
    │   ├── AdapterSaveError        (ValueError)       a state or a folder that must not be saved (into)
    │   └── BaseModelMismatchError  (ValueError)       an adapter that was learned on another base
    ├── CheckpointError         (ValueError)           the state of another run, or one that cannot be read or written
    ├── MergeError              (NotImplementedError)  RSPs cannot be folded into the weights
    └── LaunchError             (RuntimeError)         processes that did not start, or a wrapper that cannot work

The second base is what a user of torch, PEFT or the Hub would already catch. A message has three parts: what came, what
is allowed, and the way out. Nothing is changed when one of these is raised.
"""


class SpearError(Exception):
    """The base of every error in this package."""


class ConfigError(SpearError, ValueError):
    """A SpearConfig value or key that is not allowed."""


class InputError(SpearError, ValueError):
    """A batch that must not be answered or learned from."""


class DataError(SpearError, ValueError):
    """A stream, column, label, corruption or image file that does not fit."""


class ModelNotFoundError(SpearError, ValueError):
    """A base model name that is no folder, Hub id or timm name."""


class BoundaryError(SpearError):
    """Something about a stage boundary."""


class NoBoundariesError(BoundaryError, ValueError):
    """No verified stage boundaries were found in a model."""


class BoundaryNotFoundError(BoundaryError, ValueError):
    """A depth, name or module path that a model does not have."""


class BoundaryNotFiredError(BoundaryError, RuntimeError):
    """An active RSP ran zero or several times in one forward."""


class UnsupportedOutputError(BoundaryError, TypeError):
    """A boundary whose output holds no tensor with a channel axis."""


class CompiledBaseError(SpearError, RuntimeError):
    """RSPs cannot be attached to a base that is already compiled."""


class AlreadySteeredError(SpearError, ValueError):
    """The base carries RSPs already."""


class AdapterError(SpearError):
    """Something about a named adapter or its files."""


class AdapterNameError(AdapterError, ValueError):
    """An adapter name that is empty, taken, reserved, dotted or slashed."""


class AdapterNotFoundError(AdapterError, KeyError):
    """An adapter name that a model does not hold."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


class AdapterFormatError(AdapterError, ValueError):
    """Files that are not a SPeaR adapter, or of a newer format."""


class AdapterLoadError(AdapterError, ValueError):
    """Adapter tensors that are missing, unexpected, misshapen or non-finite."""


class AdapterSaveError(AdapterError, ValueError):
    """A state or a folder that must not be saved (into)."""


class BaseModelMismatchError(AdapterError, ValueError):
    """An adapter that was learned on another base model."""


class CheckpointError(SpearError, ValueError):
    """The state of another run, or one that cannot be read or written."""


class MergeError(SpearError, NotImplementedError):
    """RSPs cannot be folded into the weights of the base."""


class LaunchError(SpearError, RuntimeError):
    """Processes were asked for that did not start, or a wrapper that cannot work."""
