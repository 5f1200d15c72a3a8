"""StreamState: all that one stream has learned, in one object.

RSP values, Adam's moments, remembered statistics and classes, the domain detector, the shares of alpha, counters and
the record of the last step. `Spear` owns the states; a model does not know them.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from spear_hf.adapters.arithmetic import deviations
from spear_hf.backbones.fingerprint import KnownBase
from spear_hf.config import SpearConfig, differences
from spear_hf.errors import CheckpointError, ConfigError, SpearError
from spear_hf.learning.alpha_shares import AlphaShares
from spear_hf.learning.class_marginal import ClassMarginal
from spear_hf.learning.class_skew import ClassSkew
from spear_hf.learning.domain_shift import DomainShiftDetector
from spear_hf.learning.record import StepRecord
from spear_hf.learning.state_form import check_form, check_options
from spear_hf.learning.statistics_memory import StatisticsMemory
from spear_hf.steering.model import SpearModel
from spear_hf.utils.state_file import read_state, write_state

FORMAT_VERSION = 1
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class AdamMoments:
    """Adam's running averages of the gradient and of its square, (P,) each, and how many steps they are of."""

    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor

    @classmethod
    def zeros(cls, like: Tensor) -> "AdamMoments":
        """Before the first step, for parameters (P,)."""
        return cls(torch.zeros_like(like), torch.zeros_like(like), torch.zeros((), dtype=torch.float32))


@dataclass(frozen=True)
class Learned:
    """What a stream answers by; replaced as a whole, so that a reader in another thread never sees half of a step.

    Args:
        flat: (P,) fp32, the RSPs one after the other, gamma before beta.
        moments: Adam's.
    """

    flat: Tensor
    moments: AdamMoments


class ValueLayout:
    """Where gamma and beta of each RSP lie in the flat (P,) tensor of a stream.

    Args:
        state: an adapter's, "<boundary key>.gamma" and "<boundary key>.beta" -> (C,).

    >>> import torch
    >>> layout = ValueLayout({"0.gamma": torch.ones(8), "0.beta": torch.zeros(8)})
    >>> layout.split(torch.arange(16.0))["0.beta"][:2]
    tensor([8., 9.])
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.keys = list(state)
        self.sizes = [len(state[key]) for key in self.keys]

    def flat(self, state: Mapping[str, Tensor]) -> Tensor:
        """(P,)."""
        return torch.cat([state[key].detach().flatten() for key in self.keys])

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of the last axis: (P,) gives (C,) for each key, (S, P) gives (S, C)."""
        return dict(zip(self.keys, flat.split(self.sizes, dim=-1), strict=True))


class StreamState:
    """All that one stream has learned.

    Args:
        config: placement, objective and optimizer; a saved state is of exactly these.
        start: the adapter that the stream starts from, "<boundary key>.gamma" and ".beta" -> (C,).
        base: facts that tell the base from others, for `save` and `load`; None checks no base.
        num_channels: of all batch norms of the base together, to check a state that is loaded; None checks nothing.

    Attributes:
        statistics, classes, shift, alpha_shares, skew: what it knows of its images; None where the configuration asks
            for none.
        num_steps: how many batches held images of this stream.
        last: the StepRecord of the latest of them, or None.

    >>> import torch
    >>> state = StreamState(SpearConfig(), {"0.gamma": torch.ones(8), "0.beta": torch.zeros(8)})
    >>> state.num_steps, state.nbytes
    (0, 256)
    """

    @torch.inference_mode(False)  # inference tensors could not be learned on
    def __init__(
        self,
        config: SpearConfig,
        start: Mapping[str, Tensor],
        base: KnownBase | None = None,
        num_channels: int | None = None,
    ) -> None:
        self.config = config
        self.base = base
        self.layout = ValueLayout(start)
        self.lock = RLock()  # held during a step: it reads, learns and writes
        self._start = self.layout.flat(start)
        self.statistics = StatisticsMemory(config.memory_images, num_channels)
        self.classes = ClassMarginal(config.memory_images) if config.memory_images else None
        self.shift = DomainShiftDetector(config.domain_jump) if config.domain_jump and config.memory_images else None
        mixes = config.alpha > 0 and num_channels != 0
        self.alpha_shares = AlphaShares(config.alpha_images if mixes else 0)
        self.skew = ClassSkew(config.memory_images) if config.class_skew and config.memory_images and mixes else None
        self.was_taught_by_few = False  # by images seen before it was known of how many classes they are
        self.num_steps = 0
        self.last: StepRecord | None = None
        self._put(self._start.clone())

    # --- values ----------------------------------------------------------------------------------------------------

    def _put(self, flat: Tensor) -> None:
        self.learned = Learned(flat, AdamMoments.zeros(flat))

    @property
    def flat(self) -> Tensor:
        """(P,), the values now, one RSP after the other."""
        return self.learned.flat

    @property
    def start(self) -> dict[str, Tensor]:
        """What the stream began with: a copy."""
        return {key: value.clone() for key, value in self.layout.split(self._start).items()}

    @property
    def rsp(self) -> dict[str, Tensor]:
        """A copy of the values: "<boundary key>.gamma" and "<boundary key>.beta" -> (C,), as an adapter has them."""
        return {key: value.clone() for key, value in self.layout.split(self.flat).items()}

    def deviations(self) -> tuple[float, float]:
        """||gamma - 1|| and ||beta|| over all RSPs."""
        return deviations(self.layout.split(self.flat))

    @property
    def nbytes(self) -> int:
        """What the state takes, in bytes: values, moments, and what is remembered."""
        classes = 0 if self.classes is None else self.classes.nbytes
        skew = 0 if self.skew is None else self.skew.nbytes
        return 3 * self._start.nbytes + self.statistics.nbytes + self.alpha_shares.nbytes + classes + skew

    @torch.inference_mode(False)
    def reset(self) -> None:
        """Back to the start: values, moments, memories and counters."""
        with self.lock:
            self._put(self._start.clone())
            self._forget()

    def _forget(self) -> None:
        self.statistics.clear()
        self.alpha_shares.clear()
        self.was_taught_by_few = False
        if self.skew is not None:
            self.skew.clear()
        if self.shift is not None:
            self.shift.clear()
        if self.classes is not None:
            self.classes.clear()
        self.num_steps, self.last = 0, None

    @property
    def early_only(self) -> bool:
        """Whether statistics are mixed in the first half of the batch norms alone: unless many classes are shown."""
        return self.skew is not None and not (self.skew.is_known and self.skew.is_of_few is False)

    @property
    def shows_few_classes(self) -> bool:
        """Whether few at a time, as far as is known."""
        return self.skew is not None and bool(self.skew.is_of_few)

    def begin_domain(self) -> None:
        """The stream has changed to another domain: what was learned in the last, and of its statistics, goes.

        RSPs go with the statistics that they were learned under: those of fog were 80 % wrong on clean images after it,
        which take none of the stream's statistics.
        """
        self.unlearn()
        self.statistics.clear()
        self.alpha_shares.clear()

    def unlearn(self) -> None:
        """Values and moments are those of the start; what is remembered stays."""
        self._put(self._start.clone())
        self.was_taught_by_few = False

    # --- saving ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All of it: tensors, numbers, strings, lists and dictionaries."""
        with self.lock:
            return {
                "config": self.config.to_dict(),
                "rsp": self.rsp,
                "start": self.start,
                "optimizer": self._optimizer_state(),
                "statistics": self.statistics.state_dict(),
                "jump": None if self.shift is None else self.shift.state_dict(),
                "trial": self.alpha_shares.state_dict(),
                "skew": None if self.skew is None else self.skew.state_dict(),
                "seen": None if self.classes is None else self.classes.state_dict(),
                "num_steps": self.num_steps,
            }

    def _optimizer_state(self) -> dict[str, Any]:
        moments = self.learned.moments
        return {
            "exp_avg": moments.exp_avg.clone(),
            "exp_avg_sq": moments.exp_avg_sq.clone(),
            "step": moments.step.clone(),
        }

    @torch.inference_mode(False)  # every tensor of the state is copied below, so that none is an inference tensor
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`.

        Raises:
            SpearError: another configuration, a part that is missing or of another form, or values that are not finite;
                nothing is changed.
        """
        with self.lock:
            self.check_state_dict(state)
            self._start = self.layout.flat(state["start"]).to(self._start.device)
            self._load_values(self.layout.flat(state["rsp"]), state["optimizer"])
            self._load_memories(state)

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise what `load_state_dict` would raise."""
        try:
            self._check(state)
            self._check_optimizer(state["optimizer"])
            twin = StreamState(self.config, self.start, None, self.statistics.num_channels)
            twin._load_memories(state)  # a part of another form fails here, before anything is changed
        except SpearError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"this state has another form ({type(error).__name__}: {error}); resume from one of this version"
            ) from error

    def _check(self, state: Mapping[str, Any]) -> None:
        wanted = {"config", "rsp", "start", "optimizer", "statistics", "jump", "trial", "skew", "seen", "num_steps"}
        if missing := sorted(wanted - state.keys()):
            raise CheckpointError(f"this state lacks {missing}; resume from one that is whole")
        if differ := differences(state["config"], self._configuration()):
            raise ConfigError(f"this state was learned with another configuration ({differ}); use that one to resume")
        shapes = [{key: tuple(value.shape) for key, value in self.layout.split(self._start).items()}]
        for name in ("rsp", "start"):
            values = state[name]
            found = {k: tuple(v.shape) for k, v in values.items() if isinstance(v, Tensor)}
            if found != shapes[0]:
                raise CheckpointError(f"this state's {name} has {found}, this learner {shapes[0]}; use its own model")
        if bad := _non_finite(dict(state)):
            raise CheckpointError(f"this state holds values that are not finite ({bad}); resume from an earlier one")
        check_form(state)

    def _configuration(self) -> dict[str, Any]:
        return self.config.to_dict()

    def _check_optimizer(self, optimizer: Mapping[str, Any]) -> None:
        for name in ("exp_avg", "exp_avg_sq"):
            if tuple(optimizer[name].shape) != tuple(self._start.shape):
                raise CheckpointError(
                    f"Adam's {name} has shape {tuple(optimizer[name].shape)}, expected {tuple(self._start.shape)}"
                )
        float(optimizer["step"])

    def _load_values(self, flat: Tensor, optimizer: Mapping[str, Any]) -> None:
        device = self._start.device
        exp_avg, exp_avg_sq = (optimizer[name].to(device, copy=True) for name in ("exp_avg", "exp_avg_sq"))
        step = torch.as_tensor(optimizer["step"], dtype=torch.float32).clone()
        self.learned = Learned(flat.to(device), AdamMoments(exp_avg, exp_avg_sq, step))

    def _load_memories(self, state: Mapping[str, Any]) -> None:
        self.statistics.load_state_dict(state["statistics"])
        self.alpha_shares.load_state_dict(state["trial"])
        if self.skew is not None:
            self.skew.load_state_dict(state["skew"])
        if self.shift is not None:
            self.shift.load_state_dict(state["jump"])
        if self.classes is not None:
            self.classes.load_state_dict(state["seen"])
        self.num_steps, self.last = int(state["num_steps"]), None

    def save(self, path: str | Path, *, durable: bool = True, name: str | None = None) -> Path:
        """Write the state, memory included, as one safetensors file, all or nothing.

        Args:
            path: the ending .safetensors is added where it is missing.
            durable: wait until the disk has it; a power failure can lose the latest write otherwise, a kill never does.
            name: of the stream, noted in the file.

        Raises:
            OSError: the disk is full or read-only; what was there before is kept.
        """
        with self.lock:
            last = None if self.last is None else self.last.to_dict()
            last = None if _non_finite(last) else last  # JSON has no NaN
            base = None if self.base is None else self.base()
            facts = {"format_version": FORMAT_VERSION, "name": name, "last": last, "base": base}
            return write_state(_with_suffix(path), self.state_dict(), facts, durable=durable)

    def load(self, path: str | Path) -> "StreamState":
        """Go on from a file that `save` wrote, strictly.

        Returns:
            Itself.

        Raises:
            CheckpointError: no such file, another base, another form, or values that are not finite.
            ConfigError: another configuration. Nothing is changed in either case.
        """
        path = _with_suffix(path)
        state, facts = read_state(path)
        if facts.get("format_version") != FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has format {facts.get('format_version')!r}, this version reads {FORMAT_VERSION}"
            )
        if self.base is not None and (differ := self.base.difference(facts.get("base"))):
            raise CheckpointError(f"{path} is of a stream on another base ({differ}); load it onto its own")
        try:
            last = None if facts.get("last") is None else _record(facts["last"])
            self.load_state_dict(state)
        except SpearError as error:
            raise type(error)(f"{path}: {error}") from error
        self.last = last
        return self


def _record(data: Mapping[str, Any]) -> StepRecord:
    """What StepRecord.to_dict gave, after JSON made lists of tuples."""
    try:
        fields: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
        return StepRecord(**fields)
    except (AttributeError, TypeError) as error:
        raise CheckpointError(f"its record of the last step has another form ({error})") from error


def _with_suffix(path: str | Path) -> Path:
    path = Path(path)
    return path if path.name.endswith(SUFFIX) else path.with_name(path.name + SUFFIX)


def _non_finite(value: Any, key: str = "") -> str:
    """The first entry that is not finite; empty where all are."""
    if isinstance(value, Tensor):
        return "" if not value.is_floating_point() or bool(torch.isfinite(value).all()) else key
    if isinstance(value, float):
        return "" if math.isfinite(value) else key
    entries = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    return next((bad for name, each in entries if (bad := _non_finite(each, f"{key}.{name}".lstrip(".")))), "")


class AdapterStream(StreamState):
    """The stream whose values are an adapter of the model: what it learns, a call of the model is steered by.

    Args:
        config: as for StreamState.
        model: holds the adapter.
        adapter_name: of the adapter.
        base, num_channels: as for StreamState.

    Attributes:
        optimizer: Adam, over the adapter's parameters; change a param_group as with any torch optimizer.
    """

    def __init__(
        self,
        config: SpearConfig,
        model: SpearModel,
        adapter_name: str,
        base: KnownBase | None = None,
        num_channels: int | None = None,
    ) -> None:
        self.model, self.adapter_name = model, adapter_name
        self.parameters = list(model.adapter_parameters(adapter_name))
        betas = config.adam_beta1, config.adam_beta2
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.parameters, lr=config.learning_rate, betas=betas)
        super().__init__(config, model.snapshot(adapter_name), base, num_channels)

    def _put(self, flat: Tensor) -> None:
        self.model.restore(self.layout.split(flat), self.adapter_name)
        self.optimizer.state.clear()

    def unlearn(self) -> None:
        """Values are those of the start, and Adam's moments 0, as of a stream that was never learned from."""
        self.model.restore(self.layout.split(self._start), self.adapter_name)
        for moments in self.optimizer.state.values():
            for value in moments.values():
                value.zero_()
        self.was_taught_by_few = False

    @property
    def flat(self) -> Tensor:
        """(P,), a copy of the adapter's values."""
        return self.layout.flat(self.model.snapshot(self.adapter_name))

    def _optimizer_state(self) -> dict[str, Any]:
        return copy.deepcopy(self.optimizer.state_dict())

    def _check_optimizer(self, optimizer: Mapping[str, Any]) -> None:
        for number, slot in optimizer["state"].items():
            shape = tuple(self.parameters[number].shape)
            for name, value in slot.items():
                if isinstance(value, Tensor) and value.dim() > 0 and tuple(value.shape) != shape:
                    raise CheckpointError(f"the optimizer's {name} has shape {tuple(value.shape)}, expected {shape}")
        for own, loaded in zip(self.optimizer.param_groups, optimizer["param_groups"], strict=True):
            check_options(loaded, own)
        copy.deepcopy(self.optimizer).load_state_dict(copy.deepcopy(dict(optimizer)))  # fails here, if at all

    def _load_values(self, flat: Tensor, optimizer: Mapping[str, Any]) -> None:
        self.model.restore(self.layout.split(flat), self.adapter_name)
        self.optimizer.load_state_dict(copy.deepcopy(dict(optimizer)))
