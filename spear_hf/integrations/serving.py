"""Classify images of many streams as they arrive: decode, collect a batch, step once for all streams in it.

`examples/serve.py` and `examples/serve_ray.py` put this behind HTTP (`spear_hf.integrations.http_app`).
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from spear_hf.data.decode import decode_rgb
from spear_hf.data.processor import Processor
from spear_hf.errors import CheckpointError, ConfigError, InputError, SpearError
from spear_hf.integrations.batcher import Batcher
from spear_hf.learning.objective import normalized_entropy
from spear_hf.learning.spear import Spear
from spear_hf.learning.streams import Streams, check_stream_name
from spear_hf.utils.state_file import read_facts

TOP = 5
MAX_STREAMS = 100_000
MAX_PIXELS, MAX_ASPECT = 50_000_000, 32
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "AVIF")  # not EPS: Pillow would run Ghostscript on it

log = logging.getLogger(__name__)


class Reply(NamedTuple):
    """An HTTP status, and what is sent as JSON.

    >>> from spear_hf.integrations.serving import Reply
    >>> Reply(404, {"error": "there is no stream 'cam-1'"}).status
    404
    """

    status: int
    content: dict[str, Any]


class StreamImage(NamedTuple):
    """One image, and whose it is.

    Args:
        x: (3, H, W), as the processor makes it.
        stream: the name of its stream.
        learn: whether the stream learns from it.

    >>> import torch
    >>> from spear_hf.integrations.serving import StreamImage
    >>> StreamImage(torch.zeros(3, 32, 32), "cam-1").learn
    True
    """

    x: Tensor
    stream: str
    learn: bool = True


class StreamClassifier:
    """Replies to images of many streams; each stream is answered and learned from by its own state.

    Args:
        learner: holds the streams.
        processor: of its base model.
        class_names: from `load_class_names`; the last name of a class is shown. None shows its number.

    >>> import timm, torch
    >>> from spear_hf import Spear, get_spear_model, load_processor
    >>> from spear_hf.integrations.serving import StreamClassifier, StreamImage
    >>> base = timm.create_model("test_resnet")
    >>> classifier = StreamClassifier(Spear(get_spear_model(base)), load_processor(base))
    >>> reply = classifier.answer([StreamImage(torch.zeros(3, 32, 32), "cam-1")])[0]
    >>> reply.status, len(reply.content["top"])
    (200, 5)
    """

    def __init__(
        self, learner: Spear, processor: Processor, class_names: Sequence[tuple[str, ...]] | None = None
    ) -> None:
        self.learner = learner
        self.processor = processor
        self.class_names = class_names
        self.device = next(learner.model.parameters()).device

    def prepare(self, body: bytes) -> Tensor:
        """(3, H, W) of the bytes of an image file, upright; any number of threads may call this.

        Raises:
            InputError: no image, or one that is too large or too long.
        """
        try:
            with Image.open(BytesIO(body), formats=FORMATS) as image:  # reads the header alone
                width, height = image.size
                if width * height > MAX_PIXELS or max(width, height) > MAX_ASPECT * min(width, height):
                    raise InputError(
                        f"the image has {width} x {height} pixels; allowed are {MAX_PIXELS:,} in all, and a longer "
                        f"side of {MAX_ASPECT} times the shorter; send a smaller one"
                    )
                return self.processor([decode_rgb(image, lambda: "the image")])[0]
        except InputError:
            raise
        except Exception as error:  # Pillow's plugins raise errors of any type on bytes that no one checked
            raise InputError(
                f"the body ({len(body)} bytes) is no image that can be decoded; send a whole file in one of "
                f"{', '.join(FORMATS)}"
            ) from error

    def answer(self, images: Sequence[StreamImage]) -> list[Reply]:
        """A reply to each image. Those that are learned from take one step together, the others one forward pass."""
        replies: dict[int, Reply] = {}
        for learn in (True, False):
            rows = [i for i, image in enumerate(images) if image.learn is learn]
            known = [i for i in rows if learn or images[i].stream in self.learner.streams]
            replies |= {i: unknown_stream(images[i].stream) for i in rows}
            replies |= zip(known, self._answer([images[i] for i in known], learn), strict=True)
        return [replies[i] for i in range(len(images))]

    def _answer(self, images: Sequence[StreamImage], learn: bool) -> list[Reply]:
        if not images:
            return []
        names = [image.stream for image in images]
        x = torch.stack([image.x for image in images]).to(self.device)
        try:
            logits = self.learner.step(x, streams=names) if learn else self.learner.predict(x, streams=names)
        except (SpearError, OSError) as error:
            # These are raised before anything was learned, and one stream is the cause: its name is not allowed, or
            # its saved state cannot be read. The other streams of the batch go on without it.
            if len(set(names)) == 1:
                return [refusal(error)] * len(images)
            parts = {name: [image for image in images if image.stream == name] for name in names}
            found = {name: iter(self._answer(part, learn)) for name, part in parts.items()}
            return [next(found[name]) for name in names]
        except Exception as error:
            return [refusal(error)] * len(images)
        return [self._reply(name, row, learn) for name, row in zip(names, logits.cpu(), strict=True)]

    def _reply(self, stream: str, logits: Tensor, learn: bool) -> Reply:
        if not bool(torch.isfinite(logits).all()):
            return Reply(500, {"error": "the model's logits are not finite; nothing was learned from this image"})
        probabilities = logits.float().softmax(-1)
        top = [
            {"class": int(k), "name": self._name(int(k)), "probability": float(probabilities[k])}
            for k in probabilities.topk(min(TOP, len(probabilities))).indices
        ]
        record = self.learner.last[stream] if learn and isinstance(self.learner.last, dict) else None
        return Reply(
            200,
            {
                "stream": stream,
                **top[0],
                "top": top,
                "entropy": float(normalized_entropy(logits[None])),
                "learned": record is not None and record.adapted,
                "skipped": None if record is None else record.skipped,
                "step": None if record is None else record.step,
            },
        )

    def _name(self, number: int) -> str:
        return str(number) if self.class_names is None else self.class_names[number][-1]

    # --- streams ---------------------------------------------------------------------------------------------------

    def listed(self, offset: int, limit: int) -> Reply:
        """The known streams in the order of their names, `limit` of them from number `offset`."""
        streams = self.learner.streams
        names = sorted(streams)
        # all of them, from the least recently used: looking at a state makes it the most recently used
        in_memory = {name: streams[name].num_steps for name in streams.in_memory}
        shown = [
            {
                "name": name,
                "num_steps": in_memory[name] if name in in_memory else saved_steps(streams.path(name)),
                "in_memory": name in in_memory,
            }
            for name in names[offset : offset + limit]
        ]
        return Reply(200, {"count": len(names), "streams": shown})

    def forget(self, stream: str) -> Reply:
        """Forget a stream, in memory and on disk."""
        if stream not in self.learner.streams:
            return unknown_stream(stream)
        del self.learner.streams[stream]
        return Reply(200, {"deleted": stream})

    def save(self) -> Path:
        """Write all streams in memory to the learner's folder; each file is replaced all or nothing."""
        return self.learner.streams.save()


def check_saved(streams: Streams) -> None:
    """Raise the error of the first saved stream if none of the first eight can be loaded.

    Then the folder is of another model or configuration. A single file that cannot be loaded stops its stream alone.

    >>> import timm
    >>> from spear_hf import Spear, get_spear_model
    >>> from spear_hf.integrations.serving import check_saved
    >>> check_saved(Spear(get_spear_model(timm.create_model("test_resnet"))).streams)
    """
    errors: list[SpearError] = []
    for name in sorted(streams)[:8]:
        try:
            _ = streams[name]
            return
        except SpearError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def saved_steps(path: Path) -> int | None:
    """How many steps a saved stream has made; None where its file does not say.

    >>> from pathlib import Path
    >>> from spear_hf.integrations.serving import saved_steps
    >>> saved_steps(Path("nowhere.safetensors")) is None
    True
    """
    try:
        last = read_facts(path).get("last")
    except CheckpointError:
        return None
    return None if last is None else int(last["step"]) + 1


def unknown_stream(stream: str) -> Reply:
    """404, for a stream that never learned.

    >>> from spear_hf.integrations.serving import unknown_stream
    >>> unknown_stream("cam-1").status
    404
    """
    return Reply(404, {"error": f"there is no stream {stream!r}; it begins with the first image that it learns from"})


def refusal(error: Exception) -> Reply:
    """What a client is told of an error: its words if the request was the cause, and only that if the server was.

    >>> from spear_hf.errors import InputError
    >>> from spear_hf.integrations.serving import refusal
    >>> refusal(InputError("the body is no image"))
    Reply(status=400, content={'error': 'the body is no image'})
    """
    if isinstance(error, InputError):
        return Reply(400, {"error": str(error)})
    log.error("a request failed", exc_info=error)
    if isinstance(error, (CheckpointError, ConfigError)):
        return Reply(500, {"error": "the saved state of this stream cannot be used; repair it, or DELETE the stream"})
    return Reply(500, {"error": f"the server failed ({type(error).__name__}); its log says why"})


class BatchedService:
    """A `StreamService` in this process: it decodes in threads, steps in one more, and saves from time to time.

    Args:
        classifier: what answers; its learner's `streams_folder` is what is saved to.
        max_batch: images in a step.
        max_wait_s: how long the first image of a batch waits for others, in seconds.
        save_every_s: between two saves, in seconds; a kill loses at most what was learned since.
        decoders: threads that decode.

    >>> import asyncio, io, tempfile, timm
    >>> from PIL import Image
    >>> from spear_hf import Spear, get_spear_model, load_processor
    >>> from spear_hf.integrations.serving import BatchedService, StreamClassifier
    >>> async def main(folder):
    ...     base, file = timm.create_model("test_resnet"), io.BytesIO()
    ...     Image.new("RGB", (160, 160)).save(file, "PNG")
    ...     learner = Spear(get_spear_model(base), streams_folder=folder)
    ...     service = BatchedService(StreamClassifier(learner, load_processor(base)))
    ...     async with service.running():
    ...         return (await service.predict("cam-1", file.getvalue(), True)).content["step"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(main(folder))
    0
    """

    def __init__(
        self,
        classifier: StreamClassifier,
        *,
        max_batch: int = 32,
        max_wait_s: float = 0.005,
        save_every_s: float = 60.0,
        decoders: int = 2,
    ) -> None:
        self.classifier = classifier
        self.save_every_s = save_every_s
        self._batcher = Batcher(self._answer, max_batch=max_batch, max_wait_s=max_wait_s)
        self._decoders = ThreadPoolExecutor(decoders, "spear-hf-decodes")
        self._saved_at = time.monotonic()
        self._save_error: str | None = None
        self._changed = False  # read and written in the batcher's thread

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answers requests inside; at the end what waits is answered and all streams are saved."""
        try:
            async with self._batcher:
                saving = asyncio.create_task(self._save_from_time_to_time())
                try:
                    yield
                finally:
                    saving.cancel()
        finally:
            self._decoders.shutdown()
            self.classifier.save()

    async def predict(self, stream: str, body: bytes, learn: bool) -> Reply:
        """The prediction for the bytes of an image file; the stream learns from it if `learn`."""
        known = self.classifier.learner.streams
        try:
            check_stream_name(stream)
            if learn and stream not in known and len(known) >= MAX_STREAMS:
                return Reply(507, {"error": f"there are {len(known)} streams, allowed are {MAX_STREAMS}; DELETE some"})
            # before the batch, so that a file that is no image costs the other images of the batch nothing
            x = await asyncio.get_running_loop().run_in_executor(self._decoders, self.classifier.prepare, body)
        except InputError as error:
            return refusal(error)
        return await self._batcher.submit(StreamImage(x, stream, learn))

    async def listed(self, offset: int, limit: int) -> Reply:
        """The known streams in the order of their names, `limit` of them from number `offset`."""
        return await self._batcher.call(self.classifier.listed, offset, limit)

    async def forget(self, stream: str) -> Reply:
        """Forget a stream, in memory and on disk."""
        return await self._batcher.call(self.classifier.forget, stream)

    async def health(self) -> Reply:
        """The number of streams, and how long ago they were saved; 503 while they cannot be saved."""
        content = {
            "status": "ok" if self._save_error is None else "streams cannot be saved",
            "streams": len(self.classifier.learner.streams),
            "seconds_since_save": round(time.monotonic() - self._saved_at, 1),
            "save_error": self._save_error,
        }
        return Reply(200 if self._save_error is None else 503, content)

    def _answer(self, images: Sequence[StreamImage]) -> list[Reply]:
        self._changed |= any(image.learn for image in images)
        return self.classifier.answer(images)

    def _save(self) -> None:
        if self._changed:
            self.classifier.save()
            self._changed = False

    async def _save_from_time_to_time(self) -> None:
        while True:
            await asyncio.sleep(self.save_every_s)
            try:
                await self._batcher.call(self._save)
                self._saved_at, self._save_error = time.monotonic(), None
            except OSError as error:  # a full disk must not end the service: it answers, and saves when there is room
                self._save_error = str(error)
                log.error("streams could not be saved", exc_info=error)
