"""SpearConfig: everything a user can choose about steering a model, in one validated dataclass."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from spear_hf.errors import ConfigError
from spear_hf.utils.validation import check_count, check_range, from_mapping, json_object, stable_json


def _about(text: str) -> dict[str, str]:
    """Field metadata that HfArgumentParser shows under --help."""
    return {"help": text}


@dataclass
class SpearConfig:
    """Placement, objective and optimizer of SPeaR; the defaults were chosen on held-out images (benchmarks/tune.py).

    Numbers are checked when the object is made; a wrong one raises ConfigError and says what is allowed.
    """

    boundaries: str | list[str] | tuple[int | str, ...] = field(
        default_factory=lambda: "auto",  # HfArgumentParser overlooks the plain default of a list
        metadata=_about(
            'Which stage boundaries carry an RSP: "auto", "all", or depths, names or module paths (0 is the stem).'
        ),
    )
    num_groups: int | None = field(
        default=None,
        metadata=_about(
            "Into how many stages the blocks of an isotropic transformer are grouped (2, 3, 4, 6, 12; default 4)."
        ),
    )
    stem: Literal["auto", "patch_embed", "feature_info"] = field(
        default="auto",
        metadata=_about(
            'What z_0 is: "auto" (what enters the first block), "patch_embed" or "feature_info" (timm\'s entry).'
        ),
    )
    alpha: float = field(
        default=0.35,
        metadata=_about(
            "Weight of the batch in the batch-norm statistics, Eq. 10; 0 keeps the source's, 1 takes the batch's; "
            "the paper's is 0.5."
        ),
    )
    statistics_memory: int = field(
        default=0,
        metadata=_about(
            "How many images of the stream the batch statistics remember, so that small batches have good ones, in a "
            "checkpoint but not in a saved adapter; 0, the paper's, takes each batch alone (ours)."
        ),
    )
    domain_jump: float = field(
        default=0.0,
        metadata=_about(
            "How many times further than usual a batch's statistics are from those remembered where the domain has "
            "changed, so that the statistics are forgotten and the batch is answered anew; 0 never looks (ours)."
        ),
    )
    alpha_trial: int = field(
        default=0,
        metadata=_about(
            "How many images at the start of a domain are answered with the batch's statistics alone too (alpha 1), at "
            "the cost of inference; where that is surer by a sixth, it is answered so, as are later ones until the "
            "mixture is surer; 0 never tries (ours)."
        ),
    )
    tau: float = field(
        default=0.2, metadata=_about("Threshold of both gates on the mean normalised entropy, in [0, 1].")
    )
    hard_gate: bool = field(default=True, metadata=_about("Skip a batch whose mean normalised entropy is below tau."))
    lambda_ent: float = field(default=1.0, metadata=_about("Weight of the gated entropy, Eq. 7."))
    lambda_div: float = field(default=1.0, metadata=_about("Weight of the class diversity, Eq. 8."))
    diversity_batch: int = field(
        default=16,
        metadata=_about(
            "Batch size from which lambda_div has its full weight; below, it shrinks in proportion, since few answers "
            "cannot be of all classes (ours; 1 is the paper's)."
        ),
    )
    diversity_memory: int = field(
        default=0,
        metadata=_about(
            "How many images of the stream the mean prediction of Eq. 8 remembers, so that the stream's classes are "
            "balanced and not each batch's; 0, the paper's, takes each batch alone (ours)."
        ),
    )
    lambda_anchor: float = field(default=0.1, metadata=_about("Weight of the anchor to the identity, Eq. 9."))
    anchor_growth: float = field(
        default=2.0,
        metadata=_about("lambda_d = anchor_growth ** d in Eq. 9: deeper RSPs are held closer to the identity."),
    )
    learning_rate: float = field(default=0.03, metadata=_about("Adam's learning rate."))
    learning_rate_batch: int = field(
        default=0,
        metadata=_about(
            "Batch size that learning_rate is meant for: a batch of B gets sqrt(B / learning_rate_batch) of it; 0, the "
            "paper's, gives all batch sizes the same (ours)."
        ),
    )
    steps: int = field(
        default=1, metadata=_about("Adaptation steps for each batch; the first reuses the answer's forward.")
    )
    learn_every: int = field(
        default=1,
        metadata=_about(
            "Learn from every n-th batch and only answer the others, at the cost of inference (ours; 1 is the paper's)."
        ),
    )
    learn_stride: int = field(
        default=1,
        metadata=_about(
            "Take the gradient from every n-th image of a batch, under the statistics of all of them (ours; 1 is the "
            "paper's)."
        ),
    )
    answer_views: int = field(
        default=1,
        metadata=_about(
            "Over how many views a batch's answer is averaged, at the cost of inference for each: 1 is the image, 2 "
            "adds its mirror image, 4 adds both moved by 1/32 of the side (ours; 1 is the paper's)."
        ),
    )
    adam_beta1: float = field(default=0.9, metadata=_about("Adam's first decay rate."))
    adam_beta2: float = field(default=0.999, metadata=_about("Adam's second decay rate."))

    def __post_init__(self) -> None:
        self.boundaries = _parse_boundaries(self.boundaries)
        for name, low, high in _RANGES:
            check_range(self, name, low, high)
        check_count(self, "steps")
        for name in ("diversity_batch", "learn_every", "learn_stride"):
            check_count(self, name)
        for name in ("statistics_memory", "alpha_trial", "diversity_memory", "learning_rate_batch"):
            check_count(self, name, least=0)
        if self.domain_jump and (self.domain_jump <= 1 or not self.statistics_memory):
            raise ConfigError(
                f"domain_jump={self.domain_jump:g} with statistics_memory={self.statistics_memory} is not allowed; "
                "domain_jump is 0 or above 1, and only with a statistics_memory is there anything to jump from"
            )
        check_count(self, "answer_views", most=MOST_VIEWS)
        if self.num_groups is not None:
            check_count(self, "num_groups")
        if self.stem not in STEMS:
            raise ConfigError(f"stem={self.stem!r} is not known; allowed are {', '.join(STEMS)}")

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        data = asdict(self)
        return data | {"boundaries": data["boundaries"] if isinstance(self.boundaries, str) else list(self.boundaries)}

    def to_json(self) -> str:
        """The same configuration always gives the same text: sorted keys, two spaces, a final newline."""
        return stable_json(self.to_dict())

    @classmethod
    def streaming(cls, **changes: Any) -> "SpearConfig":
        """The configuration that remembers about the last 64 images of the stream, with `changes`; ours.

        For streams of any batch size, and of domains that change: batch statistics and Eq. 8's mean prediction are the
        stream's (`statistics_memory`, `diversity_memory`), statistics are forgotten where the domain changes
        (`domain_jump`), the first images of a domain decide between alpha, the paper's, and the batch's statistics
        alone (`alpha_trial`), and the learning rate goes with the batch (`learning_rate_batch`). `answer_views=4` takes
        away more errors, at the cost of three forwards, where a mirrored image is still of its class.

        >>> SpearConfig.streaming(tau=0.1).statistics_memory
        64

        Raises:
            ConfigError: a field that does not exist, or a value that is not allowed.
        """
        return from_mapping(cls, STREAMING | changes)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SpearConfig":
        """The configuration in a dictionary; an unknown key raises ConfigError and names the nearest one."""
        return from_mapping(cls, data)

    @classmethod
    def from_json(cls, text: str) -> "SpearConfig":
        """The configuration in a JSON object, as `to_json` writes it."""
        return from_mapping(cls, json_object(cls, text))


STREAMING: dict[str, Any] = {
    "alpha": 0.5,
    "statistics_memory": 64,
    "domain_jump": 4.0,
    "alpha_trial": 256,
    "diversity_memory": 64,
    "diversity_batch": 8,
    "learning_rate_batch": 16,
}

MOST_VIEWS = 4

STEMS = ("auto", "patch_embed", "feature_info")

_RANGES: tuple[tuple[str, float, float], ...] = (
    ("alpha", 0.0, 1.0),
    ("domain_jump", 0.0, math.inf),
    ("tau", 0.0, 1.0),
    ("lambda_ent", 0.0, math.inf),
    ("lambda_div", 0.0, math.inf),
    ("lambda_anchor", 0.0, math.inf),
    ("anchor_growth", 1.0, math.inf),
    ("learning_rate", 0.0, math.inf),
    ("adam_beta1", 0.0, 1.0),
    ("adam_beta2", 0.0, 1.0),
)


def _parse_boundaries(value: Any) -> str | tuple[int | str, ...]:
    """Depths as integers, names and paths as strings; "0,1" and ["0", "1"] from a command line become (0, 1)."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(v, (int, str)) for v in value):
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
    """Where two configurations differ, in words: "tau: 0.1, here 0.2"; empty where they are equal."""
    keys = sorted(found.keys() | mine.keys())
    return "; ".join(f"{k}: {found.get(k)!r}, here {mine.get(k)!r}" for k in keys if found.get(k) != mine.get(k))
