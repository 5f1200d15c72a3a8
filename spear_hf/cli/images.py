"""The options that say which model it is, which images come, and under which corruptions."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from spear_hf.data.batches import Stream


def about(text: str, default: Any) -> Any:
    """A field with its help."""
    return field(default=default, metadata={"help": text})


@dataclass
class Weights:
    """Weights of the model."""

    revision: str | None = about("The commit, branch or tag of a Hub id.", None)
    checkpoint: str | None = about("A .safetensors state_dict for a timm name without weights.", None)

    def load(self, model: str) -> "nn.Module":
        """The base with these weights."""
        from spear_hf.backbones.load import load_base_model

        return load_base_model(model, revision=self.revision, checkpoint=self.checkpoint)


@dataclass
class Images:
    """Images and corruptions."""

    corruptions: str = about('"all" (the 15), "clean", "extra", a group, or names with commas.', "all")
    severity: float = about("From 1 to 5; fractions interpolate the constants.", 5.0)
    preset: str = about('Whose constants: "imagenet", "cifar", "tiny"; "auto" goes by the image size.', "auto")
    protocol: str = about('"single" forgets before each corruption; "continual", "gradual", "mixed" go on.', "single")
    batch_size: int = about("Images in a batch, over all processes.", 64)
    limit: int | None = about("Images of each corruption, a seeded sample; all by default.", None)
    split: str = about('Of a dataset; "auto" takes test or validation.', "auto")
    seed: int = about("Of the order and of the corruptions.", 0)
    num_workers: int = about("Processes that prepare batches ahead.", 0)

    def clean(self, limit: int) -> "Images":
        """So many of the same images, as they are."""
        return replace(self, corruptions="clean", protocol="single", limit=limit)

    def stream(self, dataset: str, base: "nn.Module") -> "Stream":
        """The stream of these images, prepared for a model and labelled in its numbering."""
        from spear_hf.data.processor import load_class_names, load_processor
        from spear_hf.data.stream import load_stream

        return load_stream(
            dataset,
            corruptions=self.corruptions,
            severity=self.severity,
            preset=self.preset,
            protocol=self.protocol,
            batch_size=self.batch_size,
            limit=self.limit,
            split=self.split,
            seed=self.seed,
            num_workers=self.num_workers,
            processor=load_processor(base),
            class_names=load_class_names(base),
        )


@dataclass
class AsTheyAre(Images):
    """Images and corruptions."""

    corruptions: str = about('"clean" leaves images as they are; a name, "all" or a group corrupts them.', "clean")
