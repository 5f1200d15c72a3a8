"""The frames of a video file, where a decoder (PyAV) is installed."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import Domain
from spear_hf.errors import DataError

VIDEOS = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".ts")


class VideoSource:
    """The frames of a video in order; the sample id is the number of the frame.

    Frames are decoded from the start, a window at a time. An earlier frame is decoded from the start again. A stream
    reads them in its own process: the threads of a decoder do not survive a fork.

    Args:
        path: the file.
        window: number of frames that are held at once; shuffling is inside windows.

    Raises:
        DataError: no decoder, or a file without frames.
    """

    held = None
    classes = None

    def __init__(self, path: Path, window: int = 64) -> None:
        self.name = path.name
        self.window = window
        self._path = path
        self._frames: Iterator[np.ndarray] | None = None
        self._at = (-1, 0)  # (process, next frame): a forked process must not use its parent's decoder
        self._kept: dict[int, np.ndarray] = {}
        self._count = sum(1 for _ in self._decode())
        if not self._count:
            raise DataError(f"{self.name!r} holds no frame; pass another video")

    def __len__(self) -> int:
        return self._count

    def __getstate__(self) -> dict[str, Any]:  # an open decoder cannot be pickled
        return vars(self) | {"_frames": None, "_at": (-1, 0), "_kept": {}}

    def labels(self, ids: np.ndarray, domain: Domain) -> np.ndarray | None:
        """None: a video has no labels."""
        return None

    def names(self, ids: np.ndarray, domain: Domain) -> list[str]:
        """ "frame_000017" for the 18th frame."""
        return [f"frame_{i:06d}" for i in ids.tolist()]

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """(H, W, 3) uint8 frames."""
        windows = {i // self.window for i in ids.tolist()}
        self._kept = {i: frame for i, frame in self._kept.items() if i // self.window in windows}
        for number in sorted(windows):
            for i in range(number * self.window, min((number + 1) * self.window, self._count)):
                if i not in self._kept:
                    self._kept[i] = self._frame(i)
        return [self._kept[i] for i in ids.tolist()]

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The frame of the video."""
        return f"frame {sample_id} of {self.name}"

    def describe(self) -> dict[str, Any]:
        """Number of frames."""
        return {"kind": "video", "name": self.name, "count": len(self), "window": self.window}

    def _frame(self, number: int) -> np.ndarray:
        if self._frames is None or self._at[0] != os.getpid() or self._at[1] > number:
            self._frames, self._at = self._decode(), (os.getpid(), 0)
        for frame in self._frames:
            self._at = (os.getpid(), self._at[1] + 1)
            if self._at[1] == number + 1:
                return frame
        raise DataError(f"frame {number} of {self.name} cannot be decoded; repair the video")

    def _decode(self) -> Iterator[np.ndarray]:
        try:
            import av  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise DataError(
                f"{self.name!r} is a video, and no decoder is installed; pip install av, or pass a folder of its frames"
            ) from error
        try:
            with av.open(str(self._path)) as container:
                for frame in container.decode(video=0):
                    yield frame.to_ndarray(format="rgb24")
        except (OSError, ValueError, IndexError) as error:
            raise DataError(f"{self.name!r} cannot be decoded as a video ({error}); repair it") from error
