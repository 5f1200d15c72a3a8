"""Precision and placement.

Weights that are quantised alone keep their gradient with respect to images, which is all that an RSP needs. A quantised
base is another base than the floats it was made of: an adapter says which of them it was learned on.
"""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, get_spear_model
from spear_hf.errors import ConfigError, InputError, LaunchError, NoBoundariesError
from tests.builders import TwoStages, learner, steered, tiny_vit
from tests.support.quantized import bitsandbytes_net, learns_and_comes_back, quanto_net, torchao_net
from tests.support.table import refused, works


@pytest.fixture
def images() -> Tensor:
    return torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@works("torchao, `Int8WeightOnlyConfig`: learn, save, load", "told apart from the float base", on="a random ViT")
def test_torchao_int8(images: Tensor, tmp_path: Path) -> None:
    net, again = (torchao_net("Int8WeightOnlyConfig") for _ in range(2))
    learns_and_comes_back(net, again, images, tmp_path)


@pytest.mark.slow
@works("torchao, four bits a weight, `IntxWeightOnlyConfig(torch.int4)`", on="a random ViT")
def test_torchao_int4(images: Tensor, tmp_path: Path) -> None:
    net, again = (torchao_net("IntxWeightOnlyConfig", weight_dtype=torch.int4) for _ in range(2))
    learns_and_comes_back(net, again, images, tmp_path)


@pytest.mark.slow
@works("quanto, `qint8` weights", on="a random ViT")
def test_quanto_int8(images: Tensor, tmp_path: Path) -> None:
    learns_and_comes_back(quanto_net("qint8"), quanto_net("qint8"), images, tmp_path)


@pytest.mark.slow
@works("quanto, `qint4` weights", on="a random ViT")
def test_quanto_int4(images: Tensor, tmp_path: Path) -> None:
    learns_and_comes_back(quanto_net("qint4"), quanto_net("qint4"), images, tmp_path)


@pytest.mark.slow
@refused(
    "torchao with quantised activations, `Int8DynamicActivationInt8WeightConfig`",
    NoBoundariesError,
    "is quantised by torchao for inference alone; learn on the float model",
)
def test_torchao_with_quantised_activations() -> None:
    get_spear_model(torchao_net("Int8DynamicActivationInt8WeightConfig"))


@pytest.mark.slow
@works("bitsandbytes, `load_in_8bit=True`, on a CPU", on="a random ViT")
def test_bitsandbytes_int8(images: Tensor, tmp_path: Path) -> None:
    net, again = (bitsandbytes_net(tmp_path / "vit", load_in_8bit=True) for _ in range(2))
    learns_and_comes_back(net, again, images, tmp_path)


@pytest.mark.slow
@works("quanto, `qint8` weights and activations, calibrated under `torch.no_grad()`", on="a random ViT")
def test_quanto_activations(images: Tensor) -> None:
    tta = Spear(get_spear_model(quanto_net("qint8", calibrate=torch.no_grad(), images=images)))
    tta.step(images)
    assert tta.last.adapted  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]


@pytest.mark.slow
@refused("quanto, calibrated with gradients", NoBoundariesError, "calibrate under torch.no_grad()")
def test_quanto_calibrated_with_gradients(images: Tensor) -> None:
    get_spear_model(quanto_net("qint8", calibrate=torch.enable_grad(), images=images))


@pytest.mark.filterwarnings("ignore")  # torch's own, of its deprecated quantisation
@refused(
    "`torch.ao.quantization.quantize_dynamic`",
    InputError,
    "is quantised by torch.ao for inference alone; learn on the float model and load the adapter onto this one",
)
def test_quantize_dynamic(images: Tensor) -> None:
    net = torch.ao.quantization.quantize_dynamic(tiny_vit(), {nn.Linear}, dtype=torch.qint8)
    Spear(get_spear_model(net)).step(images)


@works("half precision, `.half()` or `.to(torch.bfloat16)`", "RSPs stay in fp32")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(images: Tensor, dtype: torch.dtype) -> None:
    tta = learner(TwoStages().to(dtype))
    tta.step(images[..., :16, :16].to(dtype))
    assert tta.last.adapted  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    assert {p.dtype for p in tta.parameters()} == {torch.float32}


@works("accelerate's `cpu_offload`, before or after steering", "the same bits, the same fingerprint")
@pytest.mark.parametrize("before", [True, False])
def test_cpu_offload(images: Tensor, tmp_path: Path, before: bool) -> None:
    from accelerate import cpu_offload

    x = images[..., :16, :16]
    plain = learner(net := TwoStages())
    off_loaded = copy.deepcopy(plain.unload())
    if before:
        cpu_offload(off_loaded, execution_device=torch.device("cpu"))
    plain = learner(net)
    tta = learner(off_loaded)
    if not before:
        cpu_offload(off_loaded, execution_device=torch.device("cpu"))
    assert all(torch.equal(plain.step(x), tta.step(x)) for _ in range(3))
    plain.model.save_pretrained(tmp_path)
    tta.model.load_adapter(tmp_path, "loaded")


@refused(
    "`cpu_offload` of the steered model, whose RSPs it would take away",
    ConfigError,
    "off-load the base alone: cpu_offload(model.base_model)",
)
def test_cpu_offload_of_the_steered_model() -> None:
    from accelerate import cpu_offload

    model = steered(TwoStages())
    cpu_offload(model, execution_device=torch.device("cpu"))
    Spear(model)


@pytest.fixture
def mesh() -> object:
    """Of one process."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.slow
@refused("FSDP2, `fully_shard` of the base", LaunchError, "FSDP2 (fully_shard) is not supported")
def test_fsdp2_of_the_base(mesh: object) -> None:
    from torch.distributed.fsdp import fully_shard

    get_spear_model(fully_shard(TwoStages(), mesh=mesh))  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@refused("FSDP2, `fully_shard` of the steered model", LaunchError, "FSDP2 (fully_shard) is not supported")
def test_fsdp2_of_the_steered_model(mesh: object) -> None:
    from torch.distributed.fsdp import fully_shard

    Spear(fully_shard(steered(TwoStages()), mesh=mesh))  # pyright: ignore[reportArgumentType]


@refused(
    "`accelerate launch` with a configuration of more processes than start",
    LaunchError,
    "several processes were asked for and 1 runs",
)
def test_fewer_processes_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    for name, value in {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)  # all that accelerate 1.15 tells a process of it
    Spear(steered(TwoStages()), accelerator=accelerator)
