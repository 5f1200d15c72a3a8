"""Heads and outputs.

A classifier gives (B, K) logits, as a tensor or as `.logits` of what it returns. What else gives logits says where they
are; the steered model then returns them alone, and `unload` gives back the model as it came.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig, SpearModel, get_spear_model
from spear_hf.errors import AdapterLoadError, BaseModelMismatchError, InputError
from tests.builders import TinyBlock, hooks_of
from tests.support.table import refused, works

X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Body(nn.Module):
    """A main head, and one that reads an early stage; `kind` makes the output of both."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.Sequential(TinyBlock(8, 8, 1), TinyBlock(8, 16, 2))
        self.main, self.aux = nn.Linear(16, 5), nn.Linear(8, 5)
        self.eval()

    def forward(self, x: Tensor) -> Any:
        early = self.layers[0](self.stem(x))
        late = self.layers[1](early)
        return self.kind(self.main(late.mean((2, 3))), self.aux(early.mean((2, 3))))


class Pair(NamedTuple):
    main: Tensor
    aux: Tensor


@dataclass
class Both:
    main: Tensor
    aux: Tensor


def a_dict(main: Tensor, aux: Tensor) -> dict[str, Any]:
    return {"aux": aux, "heads": {"main": [main]}}


def a_tuple(main: Tensor, aux: Tensor) -> tuple[Tensor, Tensor]:
    return aux, main


def only_main(main: Tensor, aux: Tensor) -> Tensor:
    return main


def second(output: tuple[Tensor, Tensor]) -> Tensor:
    return output[1]


def steered(kind: Any, logits: Any = None) -> SpearModel:
    return get_spear_model(Body(kind), SpearConfig(alpha=0.0), inputs=X, logits=logits)


def saved(model: SpearModel, folder: Path) -> Path:
    Spear(model).step(X)
    return model.save_pretrained(folder)


@works(
    'a tuple, a dict or a dataclass: `get_spear_model(model, logits=1)`, `logits="main"`, `logits=("heads", 0)`',
    "saved with the adapter",
)
@pytest.mark.parametrize(
    ("kind", "logits"), [(a_tuple, 1), (a_dict, ("heads", "main", 0)), (Pair, "main"), (Pair, 0), (Both, "main")]
)
def test_logits_by_key_place_or_attribute(kind: Any, logits: Any, tmp_path: Path) -> None:
    model = steered(kind, logits)
    tta = Spear(model)
    assert torch.equal(tta.step(X), Body(only_main)(X))
    assert tta.last.adapted
    model.save_pretrained(tmp_path)
    after, base = model(X), model.unload()
    assert type(base(X)) is type(Body(kind)(X))
    assert hooks_of(base) == 0
    assert torch.equal(SpearModel.from_pretrained(base, tmp_path)(X), after)


@works("a function: `logits=lambda out: out[1]`", "its name is saved, and it is given again when the adapter is loaded")
def test_logits_by_a_function(tmp_path: Path) -> None:
    model = steered(a_tuple, second)
    Spear(model).step(X)
    model.save_pretrained(tmp_path)
    after, base = model(X), model.unload()
    assert torch.equal(SpearModel.from_pretrained(base, tmp_path, logits=second)(X), after)


@refused("to load such an adapter without the function", AdapterLoadError, "no file may name code to run")
def test_loading_without_the_function(tmp_path: Path) -> None:
    SpearModel.from_pretrained(Body(a_tuple), saved(steered(a_tuple, second), tmp_path))


@refused("to load an adapter on other logits", BaseModelMismatchError, "has other path (0 at 0, expected 1)")
def test_loading_on_other_logits(tmp_path: Path) -> None:
    SpearModel.from_pretrained(Body(a_tuple), saved(steered(a_tuple, 1), tmp_path), logits=0)


@refused("a tuple or a dict without `logits=`", InputError, "say where they are: get_spear_model(model, logits=...)")
def test_a_tuple_without_saying_where_the_logits_are() -> None:
    Spear(steered(a_tuple)).step(X)


@refused("`logits=` that names nothing", InputError, "and logits='mian' names nothing in it")
def test_logits_that_are_not_there() -> None:
    steered(Pair, "mian")


@works("a backbone of one's own with a linear head: `nn.Sequential(backbone, nn.Linear(...))`")
def test_a_backbone_with_a_linear_head() -> None:
    backbone = timm.create_model("test_resnet", num_classes=0)
    tta = Spear(get_spear_model(nn.Sequential(backbone, nn.Linear(backbone.num_features, 5)).eval()))
    assert tta.step(torch.randn(4, 3, 32, 32)).shape == (4, 5)
    assert tta.last.adapted


class OfFeatures(nn.Module):
    """A head on the last of timm's feature maps."""

    def __init__(self) -> None:
        super().__init__()
        self.body = timm.create_model("test_resnet", features_only=True)
        self.fc = nn.Linear(self.body.feature_info.channels()[-1], 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x)[-1].mean((2, 3)))


@works("timm's `features_only=True` with a head")
def test_features_only_with_a_head() -> None:
    tta = Spear(get_spear_model(OfFeatures().eval()))
    assert tta.step(torch.randn(4, 3, 32, 32)).shape == (4, 5)
    assert tta.last.adapted


class Ensemble(nn.Module):
    """The mean of two classifiers, of which one or both are steered."""

    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0)


@works("an ensemble of steered models: each learns, and the mean of both answers")
def test_an_ensemble_of_steered_models() -> None:
    learners = [Spear(steered(Pair, "main")) for _ in range(2)]
    mean = Ensemble(*(learner.model for learner in learners))
    answers = [learner.step(X) for learner in learners]
    assert not torch.equal(mean(X), torch.stack(answers).mean(0))
    assert torch.equal(mean(X), torch.stack([learner.predict(X) for learner in learners]).mean(0))


@refused(
    "features without a head, `num_classes=0`", InputError, "has no head, so its outputs are features and no logits"
)
def test_features_without_a_head() -> None:
    get_spear_model(timm.create_model("test_vit", num_classes=0))


@refused("`features_only=True` alone: a list of feature maps", InputError, "say where they are")
def test_features_only_alone() -> None:
    Spear(get_spear_model(timm.create_model("test_resnet", features_only=True))).step(torch.randn(4, 3, 32, 32))


@refused("a map of logits (segmentation)", InputError, "the model returned a tensor (4, 5, 4, 4)")
def test_a_map_of_logits() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), TinyBlock(8, 8, 1), TinyBlock(8, 16, 2), nn.Conv2d(16, 5, 1))
    Spear(get_spear_model(net, inputs=X)).step(X)


@refused("one logit", InputError, "which is no choice between classes")
def test_one_logit() -> None:
    get_spear_model(timm.create_model("test_vit", num_classes=1))


@refused("outputs that are probabilities", InputError, "take the softmax off")
def test_probabilities() -> None:
    Spear(steered(lambda main, _: main.softmax(1))).step(X)
