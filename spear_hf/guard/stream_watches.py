"""StreamWatches: the StreamWatch of every named stream of a Spear."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from torch import Tensor

from spear_hf.guard.policy import GuardPolicy
from spear_hf.guard.stream_watch import StreamWatch
from spear_hf.learning.stream_state import StreamState
from spear_hf.learning.streams import Streams


class StreamWatches(Mapping[str, StreamWatch]):
    """name -> StreamWatch of the named streams that a Guard has stepped.

    At most `streams.max_in_memory` watches are kept, or all if that is None. The least recently used are dropped first.
    A stream whose watch was dropped keeps what it has learned, and starts with a new watch, which compares every image
    at first. A stream that `streams` does not know starts with a new watch too.

    Args:
        streams: of the method.
        source: from images to the source's logits.
        policy: what is tolerated for each stream.

    >>> import timm, torch
    >>> from spear_hf import Guard, Spear, get_spear_model
    >>> tta = Guard(Spear(get_spear_model(timm.create_model("test_resnet"))))
    >>> logits = tta.step(torch.rand(3, 3, 32, 32), streams=["cam-1", "cam-2", "cam-1"])
    >>> {name: watch.is_fallen_back for name, watch in tta.streams.items()}
    {'cam-1': False, 'cam-2': False}
    """

    def __init__(self, streams: Streams, source: Callable[[Tensor], Tensor], policy: GuardPolicy) -> None:
        self._streams = streams
        self._source = source
        self._policy = policy
        self._lock = Lock()
        self._watches: OrderedDict[str, StreamWatch] = OrderedDict()  # the least recently used first

    def __getitem__(self, name: str) -> StreamWatch:
        return self._watches[name]

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(list(self._watches))

    def __len__(self) -> int:
        return len(self._watches)

    @contextmanager
    def held(self, names: Sequence[str]) -> Iterator[list[StreamWatch]]:
        """The watches of these streams. Until the `with` ends, no other thread steps these streams, and their states
        stay in memory.

        Raises:
            InputError: a name is not allowed.
        """
        unknown = [name for name in names if name not in self._streams]
        with self._streams.held(names):
            with self._lock:
                for name in unknown:  # the watch of a deleted stream would bring back what the stream had learned
                    self._watches.pop(name, None)
                watches = [self._watches.get(name) or self._new(name) for name in names]
                for name, watch in zip(names, watches, strict=True):
                    self._watches[name] = watch
                    self._watches.move_to_end(name)
            try:
                yield watches
            finally:
                self._drop_unused()

    def _new(self, name: str) -> StreamWatch:
        stream = _NamedStream(self._streams, name)
        return StreamWatch(stream, _StreamDistance(stream), self._source, self._policy)

    def _drop_unused(self) -> None:
        allowed = self._streams.max_in_memory
        with self._lock:
            while allowed is not None and len(self._watches) > allowed:
                self._watches.popitem(last=False)

    def clear(self) -> None:
        """Drop all watches."""
        with self._lock:
            self._watches.clear()

    def state_dict(self) -> dict[str, Any]:
        """name -> the state of the watch."""
        return {name: self._watches[name].state_dict() for name in self}

    def loaded(self, state: Mapping[str, Any]) -> dict[str, StreamWatch]:
        """New watches that continue from a `state_dict`, for `replace`.

        Raises:
            CheckpointError: a part of the state is missing or invalid.
        """
        watches = {name: self._new(name) for name in state}
        for name, watch in watches.items():
            watch.load_state_dict(state[name])
        return watches

    def replace(self, watches: Mapping[str, StreamWatch]) -> None:
        """Keep these watches and no others."""
        with self._lock:
            self._watches = OrderedDict(watches)
        self._drop_unused()


class _NamedStream:
    """What a method has learned from one stream; fetched by its name at each use, because it may leave memory."""

    def __init__(self, streams: Streams, name: str) -> None:
        self.streams = streams
        self.name = name

    @property
    def state(self) -> StreamState:
        return self.streams[self.name]

    def reset(self) -> None:
        self.state.reset()

    def state_dict(self) -> dict[str, Any]:
        return self.state.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.load_state_dict(state)

    def check_state_dict(self, state: dict[str, Any]) -> None:
        if self.name in self.streams:  # or it would be made, and nothing be known of it
            self.state.check_state_dict(state)


class _StreamDistance:
    """ParameterDistance of the values of one stream."""

    def __init__(self, stream: _NamedStream) -> None:
        self.stream = stream

    def __call__(self) -> float:
        state = self.stream.state
        channels = state.flat.numel() / 2  # each has a gamma and a beta
        distance = math.hypot(*state.deviations()) / math.sqrt(channels)
        return distance if math.isfinite(distance) else math.inf

    def deviations(self) -> tuple[float | None, float | None]:
        return self.stream.state.deviations()
