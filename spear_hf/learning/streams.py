"""Streams: the states of many streams by name, the least recently used of them on disk."""

import hashlib
import re
import shutil
import tempfile
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from spear_hf.backbones.head import is_line
from spear_hf.errors import CheckpointError, InputError
from spear_hf.learning.stream_state import SUFFIX, StreamState
from spear_hf.utils.files import sweep
from spear_hf.utils.state_file import read_facts


class Streams(Mapping[str, StreamState]):
    """name -> StreamState of every stream that was stepped or loaded.

    A stream that was not used for a while is written to `folder` and read back when its next image comes. States are
    handed out by `held`, which keeps them in memory until they are given back.

    Args:
        make: makes a state at the start.
        max_in_memory: how many states stay in memory; None keeps all of them there.
        folder: where the others go, and where those of an earlier process are found again; None takes a temporary
            folder, which goes with this object.

    >>> import torch
    >>> from spear_hf import SpearConfig
    >>> streams = Streams(lambda: StreamState(SpearConfig(), {"0.gamma": torch.ones(8), "0.beta": torch.zeros(8)}))
    >>> with streams.held(["cam-1"]) as (state,):
    ...     state.num_steps += 1
    >>> list(streams), streams["cam-1"].num_steps
    (['cam-1'], 1)
    """

    def __init__(
        self, make: Callable[[], StreamState], max_in_memory: int | None = None, folder: str | Path | None = None
    ) -> None:
        self.make = make
        self.max_in_memory = max_in_memory
        self._folder = None if folder is None else Path(folder)
        self._lock = threading.RLock()
        self._states: OrderedDict[str, StreamState] = OrderedDict()  # the least recently used first
        self._alive: weakref.WeakValueDictionary[str, StreamState] = (
            weakref.WeakValueDictionary()
        )  # evicted, yet in use
        self._users: dict[str, int] = {}  # how many steps hold a state now; those stay in memory
        self._new: set[str] = set()  # made for a step that has not ended
        if self._folder is not None:
            sweep(self._folder)  # what a killed process had half written
        self._on_disk: set[str] = set() if self._folder is None else names_in(self._folder)

    @property
    def folder(self) -> Path:
        """Where states go that leave memory."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="spear-hf-streams-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    # --- a mapping -------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> StreamState:
        if name not in self:
            raise KeyError(f"no stream {name!r}; step it once, or streams.load(name, path)")
        with self.held([name]) as (state,):
            return state

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return name in self._states or name in self._on_disk

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter([*self._states, *sorted(self._on_disk - self._states.keys())])

    def __len__(self) -> int:
        with self._lock:
            return len(self._states.keys() | self._on_disk)

    def __delitem__(self, name: str) -> None:
        """Forget a stream, in memory and on disk."""
        with self._lock:
            if name not in self:
                raise KeyError(f"no stream {name!r}")
            self._states.pop(name, None)
            self._alive.pop(name, None)
            if name in self._on_disk:
                self._on_disk.discard(name)
                self.path(name).unlink(missing_ok=True)

    @property
    def in_memory(self) -> list[str]:
        """The streams whose states are in memory, the least recently used first."""
        with self._lock:
            return list(self._states)

    def clear(self) -> None:
        """Forget all streams, in memory and on disk."""
        for name in list(self):
            del self[name]

    # --- states for a step -----------------------------------------------------------------------------------------

    @contextmanager
    def held(self, names: Sequence[str], *, create: bool = True, locked: bool = True) -> Iterator[list[StreamState]]:
        """The states of these streams, which stay in memory until the `with` ends.

        Args:
            names: without repetition.
            create: make a state for a name that is new.
            locked: let no other thread step these streams meanwhile; not needed to read what a step publishes.

        Raises:
            InputError: a name that is no line of text, or that is new where none is to be made.
        """
        for name in names:
            check_stream_name(name)
        if not create and (unknown := [name for name in names if name not in self]):
            raise InputError(
                f"streams {unknown} are not known; step them once, or streams.load(name, path); to answer as the "
                "adapter does, call the model"
            )
        states: list[StreamState] = []
        try:
            for name in names:
                states.append(self._taken(name))
            with ExitStack() as locks:
                # in one order everywhere, so that two steps never wait for each other
                for _, state in sorted(zip(names, states, strict=True), key=lambda pair: pair[0]) if locked else ():
                    locks.enter_context(state.lock)
                yield states
        except BaseException:
            self._give_back(names[: len(states)], failed=True)
            raise
        self._give_back(names)

    def _taken(self, name: str) -> StreamState:
        with self._lock:
            state = self._states.get(name)
            if state is None:
                state = self._alive.get(name)
                if state is None:
                    state = self.make()
                    if name in self._on_disk:
                        self._read(name, state)
                    else:
                        self._new.add(name)
                self._states[name] = self._alive[name] = state
            self._states.move_to_end(name)
            self._users[name] = self._users.get(name, 0) + 1
            return state

    def _read(self, name: str, state: StreamState) -> None:
        try:
            state.load(self.path(name))
        except CheckpointError as error:
            raise CheckpointError(
                f"stream {name!r} was on disk and cannot be read ({error}); put the file back, or let the stream begin "
                f"anew: del streams[{name!r}]"
            ) from error

    def _give_back(self, names: Sequence[str], *, failed: bool = False) -> None:
        """Let go of states; one that was made for a step that failed is forgotten."""
        with self._lock:
            for name in names:
                self._users[name] -= 1
                if not failed:
                    self._new.discard(name)
                if not self._users[name]:
                    del self._users[name]
                    if name in self._new:
                        self._new.discard(name)
                        self._states.pop(name, None)
                        self._alive.pop(name, None)
            self._evict()

    def _evict(self) -> None:
        """Write the least recently used states to disk until few enough are in memory."""
        if self.max_in_memory is None:
            return
        spare = [name for name in self._states if name not in self._users]
        for name in spare[: max(0, len(self._states) - self.max_in_memory)]:
            try:
                self._write(name)
            except OSError as error:
                warnings.warn(
                    f"stream {name!r} could not be written to {self.path(name)} ({error}); it stays in memory, beyond "
                    f"max_streams_in_memory={self.max_in_memory}; make room there",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return
            del self._states[name]

    def _write(self, name: str) -> None:
        self._states[name].save(self.path(name), durable=False, name=name)
        self._on_disk.add(name)

    # --- files -----------------------------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        """The file of a stream in `folder`."""
        return self.folder / file_name(name)

    def save(self, folder: str | Path | None = None) -> Path:
        """Write every state in memory to `folder`, or to the one that evicted states go to; returns it.

        Raises:
            OSError: a full or read-only disk; nothing in memory is lost.
        """
        with self._lock:
            if folder is None:
                for name in self._states:
                    self._write(name)
                return self.folder
            other = Streams(self.make, folder=folder)
            for name in self:
                with self.held([name]) as (state,):
                    state.save(other.path(name), name=name)
            return other.folder

    def load(self, name: str, path: str | Path) -> StreamState:
        """Put a saved state in the place of this stream's.

        Raises:
            CheckpointError, ConfigError: as for `StreamState.load`; nothing is changed.
        """
        return self.put(name, self.make().load(path))

    def put(self, name: str, state: StreamState) -> StreamState:
        """Put a state in the place of this stream's.

        Raises:
            InputError: a name that is no line of text, a stream that is being stepped, or a state that is of another
                learner, or that is another stream's already.
        """
        check_stream_name(name)
        self._refuse_foreign(state)
        with self._lock:
            if owners := [owner for owner, each in self._alive.items() if each is state and owner != name]:
                raise InputError(
                    f"this state is that of stream {owners[0]!r}, and both would learn into it; load a copy: "
                    f"save it, and streams.load({name!r}, path)"
                )
            if name in self._users:
                raise InputError(f"stream {name!r} is being stepped; load it between two steps")
            self._states[name] = self._alive[name] = state
            self._states.move_to_end(name)
            self._new.discard(name)
            self._evict()
        return state

    def _refuse_foreign(self, state: Any) -> None:
        """Raise InputError unless a state is as those that are made here."""
        if type(state) is not StreamState:
            raise InputError(
                f"a {type(state).__name__} was given; give a StreamState, such as streams[name] of a learner"
            )
        own = self.make()
        if (state.config, state.layout.keys, state.layout.sizes) != (own.config, own.layout.keys, own.layout.sizes):
            raise InputError("this state is of another learner; give one of the same model and configuration")

    def replace(self, states: Mapping[str, StreamState]) -> None:
        """Forget all streams and take these.

        Raises:
            InputError: a name that is no line of text, or a stream is being stepped; nothing is changed.
        """
        for name, state in states.items():
            check_stream_name(name)
            self._refuse_foreign(state)
        with self._lock:
            if self._users:
                raise InputError(f"streams {sorted(self._users)} are being stepped; load between two steps")
            self.clear()
            for name, state in states.items():
                self.put(name, state)


def check_stream_name(name: object) -> None:
    """Raise InputError for a name that is no line of text.

    >>> check_stream_name("hall 3/north")
    """
    if not is_line(name):
        raise InputError(
            f"stream name {str(name)[:80]!r} is not allowed; it is a line of text of 1 to 1000 characters, "
            "without controls or halves of characters"
        )


def names_in(folder: Path) -> set[str]:
    """The streams whose states an earlier process left in a folder; files of another kind are passed over."""
    found = set()
    for path in sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else ():
        try:
            name = read_facts(path).get("name")
            if name is not None and path.name != file_name(name):
                raise InputError(f"stream {name!r} is looked for in {file_name(name)!r}; rename the file")
        except (CheckpointError, InputError) as error:
            warnings.warn(f"{path} is no saved stream ({error}); it is passed over", RuntimeWarning, stacklevel=2)
            continue
        if name is not None:
            found.add(name)
    return found


def file_name(name: str) -> str:
    """Of the file of a stream: its name as far as file systems take it, and a hash of all of it.

    >>> file_name("Hall 3/north")
    'hall_3_north-eb662ec37c100afa.safetensors'
    """
    check_stream_name(name)
    shown = re.sub(r"[^a-z0-9_-]", "_", name.lower())[:64]
    return f"{shown}-{hashlib.sha256(name.encode()).hexdigest()[:16]}{SUFFIX}"
