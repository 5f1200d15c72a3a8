"""The options of images, which the commands and the examples share, and the stream that they describe."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spear_hf.cli.expand import about

if TYPE_CHECKING:
    from torch import nn

    from spear_hf.data.image_stream import ImageStream
    from spear_hf.data.processor import Processor


@dataclass
class ImageOptions:
    """Images.

    >>> ImageOptions(corruptions="fog").clean(100).corruptions
    'clean'
    """

    batch_size: int = about("Images in a batch, over all processes.", 64)
    shuffle: bool = about("A seeded order; by default images come as they are sorted in the source.", False)
    limit: int = about("Images of each domain: the first ones, with --shuffle a sample; 0 takes all.", 0)
    split: str = about('Split of the dataset; "auto" takes test or validation.', "auto")
    image_column: str = about("Column of the images.", "auto")
    label_column: str = about('Column of the labels; "none" reads no labels.', "auto")
    class_names: Path | None = about("A text file with the model's classes, one a line in its order.", None)
    skip_broken: bool = about("Leave out images that cannot be read, and say which.", False)
    streaming: bool = about("Read a Hub dataset while it downloads; needs --limit.", False)
    mean: str | None = about("Mean of the model's input, R,G,B in [0, 1]; with --std and --image-size.", None)
    std: str | None = about("Standard deviation of the model's input, R,G,B in [0, 1].", None)
    image_size: int | None = about("Side of the model's input in pixels.", None)
    corruptions: str = about(
        'Corrupt the images first: names with commas, a group (noise, blur, weather, digital), "all" (the 15) or '
        '"extra"; "clean" leaves them as they are.',
        "clean",
    )
    severity: float = about("Of the corruptions, from 1 to 5; fractions interpolate the constants.", 5.0)
    preset: str = about(
        'Constants of the corruptions: "imagenet", "cifar" or "tiny"; "auto" goes by the image size.', "auto"
    )
    protocol: str = about(
        '"single" resets before each corruption; "continual", "gradual" and "mixed" never reset.', "single"
    )
    seed: int = about("Seed of the image order and of the corruptions.", 0)
    num_workers: int = about("Processes that prepare batches ahead.", 0)

    def clean(self, limit: int) -> "ImageOptions":
        """The same options for `limit` images without corruption."""
        return replace(self, corruptions="clean", protocol="single", limit=limit, shuffle=True)

    def names(self, base: "nn.Module") -> "list[str] | list[tuple[str, ...]] | None":
        """The names of the model's classes: those of the file, or those that the model has.

        Raises:
            ConfigError: the file cannot be read, or has no names.
        """
        from spear_hf.data.processor import load_class_names

        return load_class_names(base) if self.class_names is None else read_names(self.class_names)

    def shown_names(self, base: "nn.Module") -> list[str] | None:
        """One name for each class of the model; None where it has none."""
        names = self.names(base)
        return None if names is None else [name if isinstance(name, str) else name[-1] for name in names]

    def processor(self, base: "nn.Module") -> "Processor":
        """The model's preprocessing, or the one that the options give."""
        from spear_hf.data.processor import load_processor

        mean, std = triple("--mean", self.mean), triple("--std", self.std)
        return load_processor(base, mean=mean, std=std, size=self.image_size)

    def domain(self, dataset: Any) -> dict[str, str]:
        """What the images are called in results if they are not corrupted: by the name of their folder or dataset."""
        name = re.sub(
            r"[^\w-]+", "-", Path(str(dataset)).resolve().stem if Path(str(dataset)).exists() else str(dataset)
        )
        return {"clean": name.strip("-") or "images"}

    def stream(self, dataset: Any, base: "nn.Module") -> "ImageStream":
        """The stream of these images, preprocessed for a model, with labels in the model's numbering.

        Args:
            dataset: what `load_stream` takes.
            base: the model.
        """
        from spear_hf.data.load_stream import load_stream

        return load_stream(
            dataset,
            corruptions=self.corruptions,
            severity=self.severity,
            preset=self.preset,
            protocol=self.protocol,
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            limit=self.limit or None,
            split=self.split,
            seed=self.seed,
            num_workers=self.num_workers,
            image_column=self.image_column,
            label_column=None if self.label_column.lower() == "none" else self.label_column,
            skip_broken=self.skip_broken,
            streaming=self.streaming,
            processor=self.processor(base),
            class_names=self.names(base),
        )


def read_names(path: Path, option: str = "class_names") -> list[str]:
    """The lines of a text file of names.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(f"{folder}/names.txt").write_text("cat\\ndog\\n")
    ...     read_names(Path(f"{folder}/names.txt"))
    ['cat', 'dog']

    Raises:
        ConfigError: the file cannot be read, or has no names.
    """
    from spear_hf.errors import ConfigError

    try:
        names = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option}={str(path)!r} cannot be read ({error}); give a text file, one a line") from error
    while names and not names[-1].strip():
        names.pop()
    if not names or not all(name.strip() for name in names):
        raise ConfigError(f"{option}={str(path)!r} has an empty line; give one a line, in the model's order")
    return [name.strip() for name in names]


def words_of(option: str, text: str | None, between: str | None = None) -> list[str] | None:
    """The lines of a file of this name, or what stands in the text itself; None for None.

    >>> words_of("labels", "cat, dog", ","), words_of("templates", "a {}, small")
    (['cat', 'dog'], ['a {}, small'])

    Args:
        option: its name, for the message.
        text: what was given.
        between: what parts words in it; None takes all of it as one.
    """
    if text is None:
        return None
    if Path(text).is_file():
        return read_names(Path(text), option)
    return [text] if between is None else [word.strip() for word in text.split(between) if word.strip()]


def triple(flag: str, text: str | None) -> tuple[float, ...] | None:
    """Three numbers from a text with commas, or one number three times.

    >>> triple("--mean", "0.5"), triple("--std", "0.2,0.2,0.3")
    ((0.5, 0.5, 0.5), (0.2, 0.2, 0.3))

    Raises:
        typer.BadParameter: another text.
    """
    if text is None:
        return None
    try:
        values = tuple(float(word) for word in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in (1, 3):
        raise typer.BadParameter(f"{flag} {text!r} is not allowed; give three numbers with commas, such as 0.5,0.5,0.5")
    return values if len(values) == 3 else values * 3
