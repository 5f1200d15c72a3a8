"""Calibration: the configuration and the guard's bounds that clean, unlabelled images of the user's own speak for.

Optional: SpearConfig() needs no clean images, and is what a calibration begins with and stays with where nothing is
surely better. The source's answers to the clean images stand for labels. The images are corrupted here, and another
value is taken only if its answers to the corrupted ones agree with them more often, beyond chance, and its answers to
the clean ones as often as those of the default.
"""

import copy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from spear_hf.backbones.fingerprint import Fingerprint, fingerprint
from spear_hf.boundaries import Boundary
from spear_hf.config import SpearConfig
from spear_hf.data.corruptions.table import resolve_corruptions
from spear_hf.data.processor import Processor
from spear_hf.errors import ConfigError, DataError
from spear_hf.evaluation.calibration import TRIED_ON
from spear_hf.evaluation.calibration.clean_images import CleanImages
from spear_hf.evaluation.calibration.preprocessing_fit import (
    PreprocessingFit,
    preprocessing_fits,
    preprocessing_warning,
)
from spear_hf.evaluation.calibration.trial import AS_THEY_ARE, Trial, adapted_logits, guard_extremes, source_logits
from spear_hf.guard.policy import GuardPolicy
from spear_hf.learning.objective import normalized_entropy
from spear_hf.steering.mixing import batch_norms
from spear_hf.steering.model import SpearModel, get_spear_model
from spear_hf.utils.files import check_output_file, write_atomically
from spear_hf.utils.strict_json import strict_json
from spear_hf.utils.validation import json_object

ALPHAS = (0.25, 0.75, 1.0)
RATES = (0.01, 0.04, 0.08)
SURE = 2.0  # standard errors that a gain must be of


@dataclass(frozen=True)
class Tried:
    """A row of the table: what was tried, and what came of it.

    Args:
        name: such as "alpha=0.75".
        clean: in percent, how often answers to clean images differ from the source's.
        corrupted: the same under corruptions.
        entropy: mean normalised entropy of the answers under corruptions.
        chosen: whether it became part of the configuration.
        why: of a value that was not chosen, the reason.

    >>> Tried("alpha=0.75", 0.5, 11.2, 0.1, False, "gains 0.2 points, by chance 0.3").name
    'alpha=0.75'
    """

    name: str
    clean: float
    corrupted: float
    entropy: float
    chosen: bool = False
    why: str = ""


@dataclass(frozen=True)
class Calibration:
    """What clean images say about a model.

    Args:
        config: the configuration to adapt with.
        policy: the bounds for a Guard of it.
        tried: the source, the default and all that was tried, in this order.
        fits: how the images look to the model under the mean and std that were given, and under others.
        warning: what is wrong with the preprocessing; None where nothing is.
        images: how many clean ones there were.
        batch_size: in how many at a time they were answered.
        corruptions: under which values were tried.
        entropy: of the source's answers to clean images: the mean, and what nine of ten batches are below.
        base: the fingerprint of the model; None says nothing of it.

    >>> from spear_hf import Calibration, GuardPolicy, SpearConfig
    >>> found = Calibration(SpearConfig(), GuardPolicy(), (), (), None, 256, 16, ("fog",), (0.1, 0.2))
    >>> sorted(found.to_dict())  # what `save` writes, and `spear-hf adapt --config FILE` takes
    ['calibration', 'config', 'guard']
    """

    config: SpearConfig
    policy: GuardPolicy
    tried: tuple[Tried, ...]
    fits: tuple[PreprocessingFit, ...]
    warning: str | None
    images: int
    batch_size: int
    corruptions: tuple[str, ...]
    entropy: tuple[float, float]
    base: dict[str, Any] | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        images: Iterable[Any],
        *,
        config: SpearConfig | None = None,
        policy: GuardPolicy | None = None,
        processor: Processor | None = None,
        corruptions: str | Iterable[str] = TRIED_ON,
        severity: float = 5,
        limit: int = 256,
        seed: int = 0,
        progress: bool = True,
    ) -> "Calibration":
        """The calibration of a model on clean images; what `calibrate` takes, and a `policy` to begin with."""
        _refuse_steered(model)
        _refuse_other_kinds(config, policy)
        clean = CleanImages.read(images, model, processor=processor, limit=limit)
        if len(clean) <= clean.batch_size:
            raise DataError(
                f"all {len(clean)} images came in one batch, and what is learned from a batch shows in the next; give "
                "more images (limit=), or the smaller batches that you will adapt with (batch_size=)"
            )
        net = copy.deepcopy(model).eval()
        fits = preprocessing_fits(net, clean)
        warning = preprocessing_warning(fits)
        if warning is not None:
            warnings.warn(warning, stacklevel=3)
        names = resolve_corruptions(corruptions)
        sets = {AS_THEY_ARE: clean.pixels} | {name: clean.corrupted(name, severity, seed) for name in names}
        with tqdm(unit="batch", disable=None if progress else True) as bar:
            search = _Search(net, clean, sets, bar)
            # with the wrong preprocessing the source's answers are no labels: nothing is chosen by them
            found, tried, source, chosen = search.run(config or SpearConfig(), only_look=warning is not None)
        policy = policy or GuardPolicy()
        if warning is None:
            rise, collapse = guard_extremes(source, chosen, clean.batch_size, policy)
            policy = policy.calibrated(entropy_rise=rise, collapse=collapse)
        answers = source.logits[AS_THEY_ARE]
        return cls(
            config=found,
            policy=policy,
            tried=tuple(tried),
            fits=tuple(fits),
            warning=warning,
            images=len(clean),
            batch_size=clean.batch_size,
            corruptions=tuple(names),
            entropy=(source.entropy(AS_THEY_ARE), _sure_batches(answers, clean.batch_size)),
            base=fingerprint(model).to_dict(),
        )

    def to_dict(self) -> dict[str, Any]:
        """The configuration under "config", the policy under "guard", and what they rest on; JSON-ready."""
        rests_on = {
            "base": self.base,
            "images": self.images,
            "batch_size": self.batch_size,
            "corruptions": list(self.corruptions),
            "source_entropy": {"mean": self.entropy[0], "nine_of_ten_batches_below": self.entropy[1]},
            "tried": [vars(row) for row in self.tried],
            "preprocessing": [vars(fit) for fit in self.fits],
            "warning": self.warning,
        }
        return {"config": self.config.to_dict(), "guard": self.policy.to_dict(), "calibration": rests_on}

    def save(self, path: str | Path) -> Path:
        """Write the file, whole or not at all; its folder is made."""
        path = Path(path)
        check_output_file(path)
        write_atomically(path, strict_json(self.to_dict(), indent=2) + "\n")
        return path


def calibrate(
    model: nn.Module,
    images: Iterable[Any],
    *,
    config: SpearConfig | None = None,
    processor: Processor | None = None,
    corruptions: str | Iterable[str] = TRIED_ON,
    severity: float = 5,
    limit: int = 256,
    seed: int = 0,
    progress: bool = True,
) -> SpearConfig:
    """The configuration that clean, unlabelled images speak for: `config`, where nothing is surely better.

    A warning tells of a mean and std that the model seems not to be trained with; nothing else is then tried, since the
    model's answers could mislead. `Calibration.of` gives the guard's
    bounds and all that was tried too. The model is not changed.

    >>> import torch, timm
    >>> from spear_hf import calibrate, load_processor
    >>> net = timm.create_model("test_resnet", num_classes=4)
    >>> images = [torch.rand(64, 3, 32, 32)]
    >>> given = load_processor(None, mean=[0.0] * 3, std=[1.0] * 3, size=32)
    >>> calibrate(net, images, processor=given, progress=False)  # doctest: +SKIP
    SpearConfig(boundaries='auto', ...)

    Args:
        model: an image classifier that is not steered.
        images: clean ones, as `evaluate` takes them, in an order like that of the stream to come, and in batches of the
            size that will be adapted in.
        config: what to begin with; default: SpearConfig().
        processor: what the images were prepared with; default: the stream's own, or that of the model.
        corruptions: what values are tried on, as for `load_stream`: those that are expected, if you know.
        severity: of them, in (0, 5].
        limit: how many images to take.
        seed: of the corruptions.
        progress: whether to show a bar.

    Raises:
        DataError: fewer than 64 images, all in one batch, ones that are not clean, or answered with one class or NaN.
        ConfigError: a model that is steered already, or a limit below 64.
        SpearError: a model that cannot be steered.
    """
    found = Calibration.of(
        model,
        images,
        config=config,
        processor=processor,
        corruptions=corruptions,
        severity=severity,
        limit=limit,
        seed=seed,
        progress=progress,
    )
    return found.config


def read_config(path: str | Path) -> tuple[SpearConfig, GuardPolicy | None]:
    """What a file holds: that of `Calibration.save`, or of `SpearConfig.to_json`, which has no policy.

    >>> import tempfile
    >>> from spear_hf import SpearConfig
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(f"{folder}/c.json").write_text(SpearConfig(alpha=0.75).to_json())
    ...     read_config(f"{folder}/c.json")[0].alpha
    0.75

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        return _parsed(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read ({error}); give a file of spear-hf calibrate") from error
    except ConfigError as error:
        raise ConfigError(f"{str(path)!r} is no file of spear-hf calibrate, and no SpearConfig: {error}") from error


def check_config_fits(path: str | Path, model: nn.Module, *batch_sizes: int) -> None:
    """Refuse a file that was made for another model, and warn of each batch size that it was not made at.

    A file that says nothing of its model, as that of a SpearConfig alone, fits any.

    >>> import tempfile
    >>> from torch import nn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(f"{folder}/c.json").write_text(SpearConfig(alpha=0.75).to_json())
    ...     check_config_fits(f"{folder}/c.json", nn.Linear(2, 2), 16)

    Raises:
        ConfigError: another model.
    """
    made = json_object(SpearConfig, Path(path).read_text(encoding="utf-8-sig")).get("calibration")
    if not isinstance(made, dict) or not isinstance(made.get("base"), dict):
        return
    try:
        apart = Fingerprint.from_dict(made["base"]).difference_from(model)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} has no readable fingerprint of its model: {error}") from error
    if apart is not None:
        raise ConfigError(
            f"{str(path)!r} was calibrated for another model: this one has {apart}; run spear-hf calibrate with this "
            "model, or keep only what stands under config"
        )
    own = made.get("batch_size")
    for size in batch_sizes:
        if size != own:
            warnings.warn(f"{str(path)!r} was calibrated at batch size {own}, and this run has {size}", stacklevel=2)


def _parsed(text: str) -> tuple[SpearConfig, GuardPolicy | None]:
    data = json_object(SpearConfig, text)
    if "config" not in data:
        return SpearConfig.from_dict(data), None
    if unknown := data.keys() - {"config", "guard", "calibration"}:
        raise ConfigError(f"{sorted(unknown)} stand beside config; allowed are guard and calibration")
    if not isinstance(data["config"], dict) or not isinstance(data.get("guard", {}), dict):
        raise ConfigError("there are no objects under config and guard")
    return SpearConfig.from_dict(data["config"]), GuardPolicy.from_dict(data["guard"]) if "guard" in data else None


class _Search:
    """Tries one value after another, and keeps what is surely better."""

    def __init__(self, net: nn.Module, clean: CleanImages, sets: dict[str, Any], bar: Any) -> None:
        self.net, self.clean, self.sets, self.bar = net, clean, sets, bar
        self.boundaries: list[Boundary] = []

    def run(self, config: SpearConfig, *, only_look: bool) -> tuple[SpearConfig, list[Tried], Trial, Trial]:
        """The configuration, the rows of the table, and the trials of the source and of that configuration.

        With `only_look` no other value is tried.
        """
        self.bar.set_description("source", refresh=False)
        logits = source_logits(self.net, self.clean, self.sets, self._on_batch)
        sure = _sure_batches(logits[AS_THEY_ARE], self.clean.batch_size)
        candidates = [] if only_look else _candidates(self.net, config, sure)
        steered = get_spear_model(self.net, config)
        self.boundaries = list(steered.boundaries)
        steered.unload()
        batches = len(self.sets) * -(-len(self.clean) // self.clean.batch_size)
        self.bar.total = batches * (2 + sum(map(len, candidates)))
        for name, answers in logits.items():
            if not bool(torch.isfinite(answers).all()):
                raise DataError(
                    f"the model answers {name} images with NaN or infinity, so that nothing can be chosen by its "
                    "answers; look at its weights, and at its precision"
                )
        truth = logits[AS_THEY_ARE].argmax(1)
        if len(truth.unique()) < 2:
            raise DataError(
                f"all {len(truth)} clean images are answered with class {int(truth[0])}, so that nothing can be chosen "
                "by answers; give images of several classes, and look whether their preprocessing is the model's"
            )
        source = Trial("source", None, logits, truth)
        best = first = self._trial("SpearConfig()" if config == SpearConfig() else "config", config, truth)
        tried = [_row(source), _row(first)]
        for group in candidates:  # the values of one field
            rivals = [self._trial(_name(change), replace(best.config or config, **change), truth) for change in group]
            better = [rival for rival in rivals if not _why_not(rival, best, first)]
            winner = min(better, key=lambda trial: trial.disagreement, default=None)
            for rival in rivals:
                why = "" if rival is winner else _why_not(rival, best, first) or "another value gains more"
                tried.append(replace(_row(rival), chosen=rival is winner, why=why))
            best = winner or best
        return best.config or config, tried, source, best

    def _trial(self, name: str, config: SpearConfig, truth: Any) -> Trial:
        self.bar.set_description(name, refresh=False)
        where = self.boundaries
        return Trial(
            name, config, adapted_logits(self.net, config, where, self.clean, self.sets, self._on_batch), truth
        )

    def _on_batch(self) -> None:
        self.bar.update()


def _candidates(net: nn.Module, config: SpearConfig, sure: float) -> list[list[dict[str, Any]]]:
    """For each field the values to try beside its own; `sure` is what the entropy of most clean batches is below."""
    mixes = next(iter(batch_norms(net)), None) is not None and config.alpha > 0
    alphas = [{"alpha": alpha} for alpha in ALPHAS if alpha != config.alpha] if mixes else []
    if config.learning_rate == 0:
        return [alphas] if alphas else []
    gates = [{"tau": round(sure, 4)}] if round(sure, 4) > config.tau else []
    rates = [{"learning_rate": rate} for rate in RATES if rate != config.learning_rate]
    return [group for group in (alphas, gates, rates) if group]


def _sure_batches(logits: Tensor, batch_size: int) -> float:
    """What the mean normalised entropy of nine of ten batches is below."""
    entropies = [normalized_entropy(part).mean() for part in logits.split(batch_size)]
    return float(torch.quantile(torch.stack(entropies), 0.9))


def _why_not(rival: Trial, best: Trial, first: Trial) -> str:
    """Why one trial does not take the place of the best one; empty where it does."""
    gain, error = rival.gain_over(best)
    if gain <= SURE * error:
        return f"{gain:+.2f} points of agreement, {error:.2f} by chance"
    if rival.clean_disagreement > first.clean_disagreement:
        return "costs answers to clean images"
    return ""


def _row(trial: Trial) -> Tried:
    corrupted = [name for name in trial.logits if name != AS_THEY_ARE]
    entropy = sum(map(trial.entropy, corrupted)) / len(corrupted)
    return Tried(trial.name, trial.clean_disagreement, trial.disagreement, entropy)


def _name(change: dict[str, Any]) -> str:
    return ", ".join(f"{field}={value:g}" for field, value in change.items())


def _refuse_other_kinds(config: Any, policy: Any) -> None:
    for name, value, kind in (("config", config, SpearConfig), ("policy", policy, GuardPolicy)):
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"{name} is a {type(value).__name__}; give a {kind.__name__}, or None for the default")


def _refuse_steered(model: Any) -> None:
    if isinstance(model, SpearModel) or not isinstance(model, nn.Module):
        raise ConfigError(
            f"a {type(model).__name__} was given; calibrate takes the base: model.get_base_model(), or what "
            "load_base_model gives"
        )
