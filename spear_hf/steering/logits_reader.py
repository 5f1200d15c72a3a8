"""LogitsReader: the logits in what a model returns, where that is neither a tensor nor has `.logits`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from spear_hf.backbones.head import UNNAMED, Head, Step, own_head
from spear_hf.errors import ConfigError, InputError
from spear_hf.utils.batch import contents

Logits = Step | Sequence[Step] | Callable[[Any], Any]
"""A key, an attribute or a place, several of them one after the other, or a function of what the model returns."""


class LogitsReader:
    """Makes a model return its logits alone, by a forward hook, until `undo`.

    Args:
        logits: "main" for out["main"] or out.main; 0 for out[0]; ("heads", 0) for out["heads"][0]; or a function.

    Attributes:
        head: what can be saved of it: the path, or the name of the function.

    Raises:
        ConfigError: something else.

    >>> import torch
    >>> class TwoHeads(nn.Linear):
    ...     def forward(self, x): return {"main": super().forward(x), "aux": x}
    >>> model = TwoHeads(3, 2)
    >>> reader = LogitsReader("main")
    >>> reader.attach(model)
    >>> model(torch.zeros(1, 3)).shape
    torch.Size([1, 2])
    """

    def __init__(self, logits: Logits) -> None:
        self.function = logits if callable(logits) else None
        path: Any = () if callable(logits) else (logits,) if isinstance(logits, (int, str)) else logits
        if not callable(logits) and not (
            isinstance(path, Sequence) and path and all(type(step) in (int, str) for step in path)
        ):
            raise ConfigError(
                f"logits={logits!r} is not allowed; give a key or place, such as 'main' or 0, several of them, or a "
                "function of what the model returns"
            )
        self.head = Head(path=tuple(path), function=None if self.function is None else name_of(self.function))
        self._handle: Any = None

    def attach(self, base: nn.Module) -> None:
        """Register the hook."""
        self._handle = base.register_forward_hook(self.read)

    @contextmanager
    def attached(self, base: nn.Module) -> Iterator[None]:
        """Attach; what is raised inside undoes it."""
        self.attach(base)
        try:
            yield
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Remove it."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = None

    def read(self, module: nn.Module, args: Any, output: Any) -> Any:
        """The logits in an output.

        Raises:
            InputError: it holds none there.
        """
        if self.function is not None:
            try:
                return self.function(output)
            except (LookupError, AttributeError, TypeError) as error:
                raise InputError(
                    f"the model returned {contents(output)}, and logits={self.head.function} finds none in it ({error})"
                ) from error
        found = output
        for step in self.head.path:
            found = _at(found, step, output)
        return found


def _at(value: Any, step: Step, output: Any) -> Any:
    if isinstance(value, (Mapping, tuple, list)) and not (isinstance(step, str) and hasattr(value, step)):
        try:
            return value[step]  # pyright: ignore[reportCallIssue, reportArgumentType]
        except (KeyError, IndexError, TypeError):
            pass
    elif isinstance(step, str) and hasattr(value, step):
        return getattr(value, step)
    raise InputError(f"the model returned {contents(output)}, and logits={step!r} names nothing in it")


def head_of(base: nn.Module, reader: LogitsReader | None) -> Head:
    """How logits come out of `base`, read by `reader`; empty for a classifier.

    >>> head_of(nn.Linear(3, 2), LogitsReader(0))
    Head(labels=(), templates=(), path=(0,), function=None)
    """
    own = own_head(base)
    return own if reader is None else replace(own, path=reader.head.path, function=reader.head.function)


def name_of(function: Callable[..., Any]) -> str:
    """The name by which a function can be imported; UNNAMED for a lambda and what is defined inside a function.

    >>> name_of(contents), name_of(lambda out: out[0])
    ('spear_hf.utils.batch:contents', '<lambda>')
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<")
    return UNNAMED if "<" in name or not module else f"{module}:{name}"
