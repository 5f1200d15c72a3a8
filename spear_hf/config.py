"""SpearConfig: everything a user can choose about steering a model, in one validated dataclass."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from spear_hf.errors import ConfigError
from spear_hf.utils.validation import check_count, check_flag, check_range, from_mapping, json_object, stable_json


def _about(text: str) -> dict[str, str]:
    """Field metadata that the command shows under --help."""
    return {"help": text}


@dataclass
class SpearConfig:
    """Placement, objective and optimizer of SPeaR; the defaults were chosen on held-out images
    (benchmarks/results/any_network.md).

    The default is meant for any network, number of classes, batch size and stream. It adds to the paper what is marked
    "extension": memories of the stream for statistics and classes, domain detection, alpha by layer as far as a shift
    is more than chance, a likelihood ratio beside the entropy, and steps as large as the shift and the images seen
    allow. `SpearConfig.paper()` is the paper's method.

    >>> from spear_hf import SpearConfig
    >>> config = SpearConfig(boundaries="all", alpha=0.5)
    >>> SpearConfig.from_json(config.to_json()) == config
    True

    Raises:
        ConfigError: a value that is not allowed; the message says what is.
    """

    boundaries: str | list[str] | tuple[int | str, ...] = field(
        default="auto",
        metadata=_about(
            'Stage boundaries that carry an RSP: "auto" (stem and first stage), "all", or depths, names or module '
            "paths (0 is the stem)."
        ),
    )
    num_groups: int | None = field(
        default=None,
        metadata=_about(
            "Number of stages that the blocks of an isotropic transformer are grouped into (2, 3, 4, 6, 12; default 4)."
        ),
    )
    stem: Literal["auto", "patch_embed", "feature_info"] = field(
        default="auto",
        metadata=_about(
            'What z_0 is: "auto" (the input of the first block), "patch_embed" or "feature_info" (timm\'s entry).'
        ),
    )
    alpha: float = field(
        default=0.5,
        metadata=_about(
            "Weight of the batch in the batch-norm statistics (Eq. 10): 0 uses the source's statistics, 1 the batch's; "
            "the paper uses 0.5."
        ),
    )
    memory_images: int = field(
        default=64,
        metadata=_about(
            "Average the batch statistics of Eq. 10 and the mean prediction of Eq. 8 over about this many recent "
            "images of the stream, for small batches; 0 uses each batch alone. Checkpoints keep the averages, saved "
            "adapters do not (extension)."
        ),
    )
    domain_jump: float = field(
        default=4.0,
        metadata=_about(
            "Reset the RSPs and the remembered statistics, and predict the batch again, when a batch is this many "
            "times farther from them than usual; 0 disables, as memory_images=0 does (extension)."
        ),
    )
    alpha_images: int = field(
        default=64,
        metadata=_about(
            "Number of images at the start of a domain on which is measured how far each layer is from the source, at "
            "one more inference; a layer whose shift could be chance takes less of alpha; 0 takes alpha everywhere "
            "(extension)."
        ),
    )
    class_skew: bool = field(
        default=True,
        metadata=_about(
            "Look at whether neighbouring images are answered alike, as those of a camera at one shelf are; while they "
            "are, mix statistics in the first half of the batch norms alone, and learn nothing. Needs memory_images "
            "(extension)."
        ),
    )
    tau: float = field(
        default=0.0,
        metadata=_about(
            "Threshold of both gates on the mean normalised entropy, in [0, 1]. How sure a network is when it is wrong "
            "differs between networks, so that no value fits all: the default is 0, without gates; the paper uses one."
        ),
    )
    hard_gate: bool = field(
        default=True, metadata=_about("Do not learn from a batch whose mean normalised entropy is below tau.")
    )
    likelihood_ratio: float = field(
        default=0.5,
        metadata=_about(
            "Share of L_ent that is the likelihood ratio -sum p log(p / (1 - p)) in place of the entropy, in [0, 1]; "
            "its gradient does not vanish where a network is sure; 0 uses the entropy alone (extension)."
        ),
    )
    learning_entropy: float | None = field(
        default=None,
        metadata=_about(
            "Divide the logits that are learned from by the temperature at which the mean normalised entropy of the "
            "batch is this, so that their scale does not matter; 0 takes them as they are; default: 0.2 for a model of "
            "images and texts, whose cosines are multiplied by 100, else 0 (extension)."
        ),
    )
    lambda_ent: float = field(default=1.0, metadata=_about("Weight of the gated entropy (Eq. 7)."))
    lambda_div: float = field(default=1.0, metadata=_about("Weight of the class diversity (Eq. 8)."))
    evidence_images: float = field(
        default=1.6,
        metadata=_about(
            "Images for each class from which the mean prediction of Eq. 8 can show all classes. Where it rests on a "
            "smaller part of them, lambda_div is multiplied by that part and the learning rate by its root; 0 never "
            "does (extension)."
        ),
    )
    lambda_anchor: float = field(default=0.1, metadata=_about("Weight of the anchor to the identity (Eq. 9)."))
    anchor_growth: float = field(
        default=2.0,
        metadata=_about("Base of lambda_d = anchor_growth ** d in Eq. 9; deeper RSPs are held closer to the identity."),
    )
    learning_rate: float = field(default=0.02, metadata=_about("Learning rate of Adam."))
    learning_rate_batch: int = field(
        default=16,
        metadata=_about(
            "Batch size that learning_rate is meant for: a batch of B images uses learning_rate * "
            "sqrt(B / learning_rate_batch); 0 uses learning_rate for every batch size (extension)."
        ),
    )
    steps: int = field(
        default=1,
        metadata=_about("Adaptation steps for each batch; the first step reuses the forward pass of the prediction."),
    )
    adapt_every: int = field(
        default=1,
        metadata=_about(
            "Learn from every n-th batch; the others are only predicted, at the cost of inference (extension)."
        ),
    )
    learn_stride: int = field(
        default=1,
        metadata=_about(
            "Compute the gradient on every n-th image of a batch, with the batch statistics of all images (extension)."
        ),
    )
    tta_views: int = field(
        default=1,
        metadata=_about(
            "Number of views (1 to 4) whose predictions are averaged, at one inference each: the image, its mirror "
            "image, and two views shifted by 1/32 of the side (extension)."
        ),
    )
    adam_beta1: float = field(default=0.9, metadata=_about("Adam's decay rate of the mean gradient, beta_1."))
    adam_beta2: float = field(default=0.999, metadata=_about("Adam's decay rate of the squared gradient, beta_2."))

    def __post_init__(self) -> None:
        self.boundaries = _parse_boundaries(self.boundaries)
        for name, low, high in _RANGES:
            check_range(self, name, low, high)
        for name in ("adam_beta1", "adam_beta2"):
            check_range(self, name, 0.0, 1.0, below=True)
        if self.learning_entropy is not None:
            check_range(self, "learning_entropy", 0.0, 1.0, below=True)
        for name in ("class_skew", "hard_gate"):
            check_flag(self, name)
        check_count(self, "steps", most=MOST_STEPS)
        for name in ("adapt_every", "learn_stride"):
            check_count(self, name)
        for name in ("memory_images", "alpha_images", "learning_rate_batch"):
            check_count(self, name, least=0)
        if 0 < self.domain_jump <= 1:
            raise ConfigError(f"domain_jump={self.domain_jump:g} is not allowed; it is 0 or above 1")
        check_count(self, "tta_views", most=MOST_VIEWS)
        if self.num_groups is not None:
            check_count(self, "num_groups")
        if self.stem not in STEMS:
            raise ConfigError(f"stem={self.stem!r} is not known; allowed are {', '.join(STEMS)}")

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        data = asdict(self)
        return data | {"boundaries": data["boundaries"] if isinstance(self.boundaries, str) else list(self.boundaries)}

    def to_json(self) -> str:
        """The fields as JSON text; equal configurations give equal text (sorted keys, two spaces, a final newline)."""
        return stable_json(self.to_dict())

    @classmethod
    def paper(cls, **changes: Any) -> "SpearConfig":
        """The paper's method, with `changes`: each batch alone, alpha 0.5, both gates, Eqs. 7 to 9 as they stand.

        The paper does not say tau and the learning rate; these were chosen on held-out images
        (benchmarks/results/tune.md).

        >>> SpearConfig.paper(tau=0.1).memory_images
        0

        Raises:
            ConfigError: a field that does not exist, or a value that is not allowed.
        """
        return from_mapping(cls, PAPER | changes)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SpearConfig":
        """The configuration in a dictionary; an unknown key raises ConfigError and names the nearest one."""
        return from_mapping(cls, data)

    @classmethod
    def from_json(cls, text: str) -> "SpearConfig":
        """The configuration in a JSON object, as `to_json` writes it."""
        return from_mapping(cls, json_object(cls, text))


PAPER: dict[str, Any] = {
    "alpha": 0.5,
    "memory_images": 0,
    "domain_jump": 0.0,
    "alpha_images": 0,
    "class_skew": False,
    "tau": 0.2,
    "hard_gate": True,
    "likelihood_ratio": 0.0,
    "learning_entropy": 0.0,
    "evidence_images": 0.0,
    "learning_rate": 0.03,
    "learning_rate_batch": 0,
}
"""Where the paper's method differs from the default."""

MOST_VIEWS = 4
MOST_STEPS = 1000  # for each batch; the paper takes one

STEMS = ("auto", "patch_embed", "feature_info")

_RANGES: tuple[tuple[str, float, float], ...] = (
    ("alpha", 0.0, 1.0),
    ("domain_jump", 0.0, math.inf),
    ("tau", 0.0, 1.0),
    ("likelihood_ratio", 0.0, 1.0),
    ("evidence_images", 0.0, math.inf),
    ("lambda_ent", 0.0, math.inf),
    ("lambda_div", 0.0, math.inf),
    ("lambda_anchor", 0.0, math.inf),
    ("anchor_growth", 1.0, 100.0),
    ("learning_rate", 0.0, 100.0),
)


def _parse_boundaries(value: Any) -> str | tuple[int | str, ...]:
    """Depths as integers, names and paths as strings; "0,1" and ["0", "1"] from a command line become (0, 1)."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)) or not value or not all(type(v) in (int, str) for v in value):
        raise ConfigError(
            f'boundaries={value!r} is not allowed; give "auto", "all", or depths, names or module paths such as (0, 1) '
            'or ["stem", "stage1"]'
        )
    choice = tuple(int(v) if isinstance(v, str) and v.isdigit() else v for v in value)
    if len(choice) == 1 and choice[0] in ("auto", "all"):
        return str(choice[0])
    if len(set(choice)) < len(choice):
        raise ConfigError(f"boundaries={choice!r} names one twice; name each once")
    return choice


def differences(found: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    """The entries in which two configurations differ, in words; empty when they are equal.

    >>> from spear_hf.config import differences
    >>> differences({"tau": 0.1, "steps": 1}, {"tau": 0.2, "steps": 1})
    'tau: 0.1, here 0.2'
    """
    keys = sorted(found.keys() | mine.keys())
    return "; ".join(f"{k}: {found.get(k)!r}, here {mine.get(k)!r}" for k in keys if found.get(k) != mine.get(k))
