"""A bank of adapters of one base: pick, without labels, the one that serves today's images best, and go on from it.

bank = AdapterBank.from_pretrained(base, "hub_cards/resnet-fog", "me/resnet50-rsp")
report = bank.choose(first_batches)
tta = Spear(bank.model)
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from spear_hf.adapters.adapter_config import CONFIG_NAME
from spear_hf.adapters.download import Token, subfolders_of
from spear_hf.adapters.names import name_of
from spear_hf.backbones.origin import is_hub_id
from spear_hf.config import SpearConfig
from spear_hf.errors import AdapterNotFoundError, InputError
from spear_hf.learning.objective import normalized_entropy
from spear_hf.steering.loading import CheckBase
from spear_hf.steering.model import SpearModel, get_spear_model
from spear_hf.utils.batch import logits_of

IDENTITY = "identity"
WORKING = "stream"
MARGIN = 0.02  # below it, 64 answers cannot tell adapters apart: what is won on one corruption is lost on another


@dataclass(frozen=True)
class BankScore:
    """How much an adapter's answers say about the images, from the answers alone.

    Args:
        adapter: its name in the bank; "identity" is the base without one.
        entropy: the mean normalised entropy of the answers, in [0, 1]; low where each image is told apart clearly.
        concentration: 1 - H(mean answer) / log K, in [0, 1]; low where all classes are answered.

    Attributes:
        information: 1 - entropy - concentration, in [0, 1]: the mutual information of image and answer over log K.
    """

    adapter: str
    entropy: float
    concentration: float

    @property
    def information(self) -> float:
        return 1 - self.entropy - self.concentration


@dataclass(frozen=True)
class BankReport:
    """What `choose` saw: every score, best first, and whom it chose."""

    scores: tuple[BankScore, ...]
    chosen: str
    num_images: int

    def table(self) -> Table:
        """The scores, best first, with the chosen adapter in bold."""
        table = Table(
            title=f"by {self.num_images} images, without labels", caption="information decides; 1 is the most"
        )
        for column in ("adapter", "information", "entropy", "concentration"):
            table.add_column(column, justify="left" if column == "adapter" else "right")
        for score in self.scores:
            values = (score.information, score.entropy, score.concentration)
            style = "bold" if score.adapter == self.chosen else None
            table.add_row(escape(score.adapter), *(f"{value:.3f}" for value in values), style=style)
        return table


class AdapterBank:
    """Adapters of one base, and a working adapter, "stream", that starts from the chosen one.

    The adapters of the bank are never learned; what is learned on the stream is the working adapter.

    Args:
        base: the base model, steered in place (`model.unload()` undoes that).
        config: of the working adapter as long as the identity is chosen.

    Attributes:
        model: the SpearModel; give it to `Spear` after `choose`.
    """

    def __init__(self, base: nn.Module, config: SpearConfig | None = None) -> None:
        self.config = config or SpearConfig()
        self.model: SpearModel = get_spear_model(base, self.config, adapter_name=WORKING)
        self.model.add_adapter(IDENTITY, self.config)

    @classmethod
    def from_pretrained(
        cls,
        base: nn.Module,
        *sources: str | Path,
        config: SpearConfig | None = None,
        revision: str | None = None,
        token: Token = None,
        check_base: CheckBase = "error",
    ) -> "AdapterBank":
        """A bank of all adapters in these folders and Hub repos; a source without one of its own gives its subfolders'.

        Raises:
            AdapterError: an adapter of another base, or one that cannot be read; the base is as it was.
        """
        bank = cls(base, config)
        try:
            for source in sources:
                for subfolder in _adapters_in(source, revision, token):
                    bank.add(source, revision=revision, subfolder=subfolder, token=token, check_base=check_base)
        except BaseException:
            bank.model.unload()
            raise
        return bank

    @property
    def names(self) -> list[str]:
        """The adapters, the identity first."""
        return [IDENTITY, *(name for name in self.model.peft_config if name not in (IDENTITY, WORKING))]

    def add(
        self,
        source: str | Path,
        name: str | None = None,
        *,
        revision: str | None = None,
        subfolder: str | None = None,
        token: Token = None,
        check_base: CheckBase = "error",
    ) -> str:
        """Load one more adapter; returns the name that it goes by, made from its source unless one is given."""
        own = name or name_of(f"{source}/{subfolder}" if subfolder else str(source))
        where = {"revision": revision, "subfolder": subfolder, "token": token}
        self.model.load_adapter(source, own, check_base=check_base, **where)
        return own

    def choose(self, batches: Iterable[Tensor], *, margin: float = MARGIN) -> BankReport:
        """Put the adapter whose answers carry most information into the working adapter, and make that active.

        Args:
            batches: (B, C, H, W) floats, the first of the stream; labels are not needed, and nothing is learned.
            margin: by how much an adapter's information must exceed the identity's to be preferred to it; 0 prefers
                the best whatever the distance.

        Raises:
            InputError: no image.
        """
        held = list(batches)
        if sum(map(len, held)) == 0:
            raise InputError("no image to choose an adapter by; give the first batches of the stream")
        scores = sorted((self._score(name, held) for name in self.names), key=lambda s: -s.information)
        own = next(score for score in scores if score.adapter == IDENTITY)
        best = scores[0] if scores[0].information > own.information + margin else own
        self.start_from(best.adapter)
        return BankReport(tuple(scores), best.adapter, sum(map(len, held)))

    def start_from(self, name: str) -> None:
        """Make the working adapter a copy of this one, and active."""
        if name not in self.names:
            raise AdapterNotFoundError(f"the bank has no adapter {name!r}; there are {self.names}")
        self.model.delete_adapter(WORKING)
        self.model.add_weighted_adapter([name], [1.0], WORKING)
        self.model.set_adapter(WORKING)

    @torch.no_grad()
    def _score(self, name: str, batches: Sequence[Tensor]) -> BankScore:
        active = self.model.active_adapters
        self.model.set_adapter(name)
        try:
            logits = torch.cat([logits_of(self.model(x)).float() for x in batches])
        finally:
            self.model.set_adapter(active)
        return score_of(name, logits)


def score_of(name: str, logits: Tensor) -> BankScore:
    """The score of an adapter with these answers (N, K)."""
    mean = logits.softmax(-1).mean(0)
    spread = float(-torch.special.xlogy(mean, mean).sum()) / math.log(len(mean))
    return BankScore(name, float(normalized_entropy(logits).mean()), 1 - spread)


def _adapters_in(source: str | Path, revision: str | None, token: Token) -> list[str | None]:
    """The subfolders of a source that hold adapters; [None] where the source is one itself."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG_NAME}"))
        return [None] if (folder / CONFIG_NAME).is_file() or not inside else list(inside)
    if not is_hub_id(str(source)):
        return [None]
    return list(subfolders_of(str(source), revision, token)) or [None]
