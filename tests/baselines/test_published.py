"""Published hyper-parameters are accepted by their methods."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf.backbones.cifar import CifarResNet
from spear_hf.baselines import METHODS, published
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.baselines.published import BENCHMARKS, for_num_classes, published_rows
from spear_hf.errors import ConfigError
from spear_hf.learning.optimize import descend
from tests.builders import LEARNERS, NORMALIZED


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_what_was_published_can_be_passed_on(benchmark: str, images: Tensor) -> None:
    net = CifarResNet(widths=(4, 4, 4), depth=1).eval()
    extra: dict[str, Any] = dict.fromkeys(("roid", "cmf", "cotta", "rotta"), NORMALIZED)
    extra["eata"] = {"source_images": images[:2]}
    for name in LEARNERS:
        if name != "spear":
            METHODS[name](net, **published(name, benchmark), **extra.get(name, {})).unload()


@pytest.mark.parametrize("benchmark", ["imagenet", "imagenet_gn", "imagenet_vit"])
def test_the_collection_has_nesterov_momentum_and_the_scripts_of_eata_sar_and_deyo_have_none(benchmark: str) -> None:
    for name in ("roid", "cmf", "buffer", "cotta"):
        assert published(name, benchmark)["nesterov"] is True
    for name in ("eta", "eata", "sar", "deyo"):
        assert "nesterov" not in published(name, benchmark)
    assert "nesterov" in published("tent", "imagenet")
    assert published("tent", "imagenet", file="EATA: main.py") == {"optimizer": "sgd", "learning_rate": 2.5e-4}


@pytest.mark.parametrize(("name", "momentum"), [("roid", 3.8 + 5.42), ("eata", 2 + 3.8)])
def test_two_published_steps_by_hand(name: str, momentum: float) -> None:
    """A gradient of 2 twice, momentum 0.9: v is 2 and 3.8; a step is g + 0.9 v with Nesterov momentum, v without."""
    settings = published(name, "imagenet")
    w = nn.Parameter(torch.ones(1, dtype=torch.double))
    optimizer = OptimizerConfig("sgd", settings["learning_rate"], nesterov=settings.get("nesterov", False)).make([w])
    for _ in range(2):
        descend((2 * w).sum(), optimizer)
    assert w.item() == pytest.approx(1 - 2.5e-4 * momentum, rel=1e-9)


@pytest.mark.parametrize(("name", "count"), [("sar", 2 * 56), ("deyo", 2 * 56), ("buffer", 2 * (10 * 4**2 + 3))])
def test_as_many_numbers_are_learned_as_in_the_authors_cifar_networks(name: str, count: int, net: nn.Module) -> None:
    """gamma and beta of all of TinyNet's norms, none skipped; a layer at the stem and one inside stage 1."""
    base = CifarResNet(widths=(4, 4, 4), depth=1).eval() if name == "buffer" else net
    method: Any = METHODS[name](base, **published(name, "cifar10"))
    assert method.learned.count == count


@pytest.mark.parametrize("name", ["tent", "eta", "sar"])
def test_a_batch_of_four_on_a_transformer_has_the_rate_of_the_scripts(name: str) -> None:
    net = nn.Sequential(nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 3))
    method: Any = METHODS[name](net, **published(name, "imagenet_vit") | ({"skip": ()} if name == "sar" else {}))
    assert method.optimizer_config.rate(4, method.adapted.is_transformer) == pytest.approx(1e-3 * 4 / 64)


@pytest.mark.parametrize("benchmark", ["cifar10", "cifar100"])
def test_sar_and_deyo_skip_no_layer_of_a_cifar_network(benchmark: str) -> None:
    assert published("sar", benchmark)["skip"] == published("deyo", benchmark)["skip"] == ()
    assert "skip" not in published("sar", "imagenet")


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_code_of_roid_and_cmf_multiplies_logits_by_the_prior(benchmark: str) -> None:
    assert published("roid", benchmark)["prior"] == published("cmf", benchmark)["prior"] == "logits"


def test_buffer_layers_are_where_run_sh_has_them_for_the_batch_size() -> None:
    large, small = published("buffer", "cifar10", batch_size=16), published("buffer", "cifar10", batch_size=4)
    assert (large["stages"], large["alpha"], small["stages"], small["alpha"]) == ((1,), 1e-4, (1,), 1e-5)
    large, small = published("buffer", "cifar100", batch_size=16), published("buffer", "cifar100", batch_size=2)
    assert (large["stages"], large["alpha"], small["stages"], small["alpha"]) == ((1, 2), 1e-4, (1,), 1e-5)
    assert large["learn_scales"] is False
    assert published("buffer", "cifar100", file="wrn40")["boundaries"] == ()


@pytest.mark.parametrize("name", ["tent", "eta", "eata", "sar", "deyo"])
def test_the_scripts_of_sar_and_deyo_have_a_rate_for_each_kind_of_network(name: str) -> None:
    vit, gn = published(name, "imagenet_vit"), published(name, "imagenet_gn")
    assert (vit["learning_rate"], vit["scale_lr"]) == (1e-3, True)
    assert (gn["learning_rate"], gn["scale_lr"]) == (2.5e-4, True)
    assert published("tent", "imagenet_vit", file="test-time-adaptation")["learning_rate"] == 2.5e-4


def test_norm_is_the_statistics_of_the_batch_and_a_tenth_of_them_for_one_image() -> None:
    assert published("bn_adapt", "cifar10", batch_size=2) == {"alpha": 1.0}
    assert published("bn_adapt", "imagenet", batch_size=1) == {"alpha": 0.1, "unbiased": True}


def test_cmf_has_less_noise_in_its_continual_script() -> None:
    assert [row.settings["noise"] for row in published_rows("cmf", "imagenet")] == [2.5e-4, 5e-3, 5e-3]
    assert published("cmf", "imagenet", file="run_cs.sh")["learning_rate"] == 2e-4


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_row_names_the_repository_and_the_file_it_was_read_from(benchmark: str) -> None:
    for name in LEARNERS:
        for row in [] if name == "spear" else published_rows(name, benchmark):
            repository, _, files = row.file.partition(": ")
            assert "/" in repository or repository == "authors of CMF"
            assert any(files.split(" ")[0].rstrip(",;").endswith(kind) for kind in (".py", ".sh", ".yaml"))


def test_a_file_that_was_not_read_is_refused_with_those_that_were() -> None:
    with pytest.raises(
        ConfigError, match=r"no row of 'rotta' on 'cifar10' was read from 'x\.py'; rows were read from BIT"
    ):
        published("rotta", "cifar10", file="x.py")


@pytest.mark.parametrize("name", ["source", "spear"])
def test_a_method_without_published_values_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"nothing published is known of '{name}'"):
        published(name, "cifar10")


@pytest.mark.parametrize(("classes", "margin"), [(2, 0.4), (10, 0.4), (31, 0.4), (32, 0.1), (100, 0.1), (1000, 0.05)])
def test_a_value_is_that_of_the_nearest_benchmark(classes: int, margin: float) -> None:
    assert for_num_classes(classes, {10: 0.4, 100: 0.1, 1000: 0.05}) == margin
