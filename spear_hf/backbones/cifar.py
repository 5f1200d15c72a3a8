"""The paper's two CIFAR backbones, timm's "cifar_resnet26" and "cifar_resnext29_32x4d".

Importing this module registers them with timm; `load_base_model` imports it. There are no weights to download: pass a
checkpoint to `load_base_model`, or load a state_dict.
"""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn import functional as F

_CIFAR10 = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
_CIFAR100 = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # AugMix's own normalisation


def _cfg(num_classes: int, normalisation: dict[str, Any], **names: str) -> dict[str, Any]:
    geometry = {"input_size": (3, 32, 32), "pool_size": (8, 8), "crop_pct": 1.0, "interpolation": "bilinear"}
    return {"url": "", "num_classes": num_classes, "fixed_input_size": False, **geometry, **normalisation, **names}


default_cfgs = generate_default_cfgs(
    {
        "cifar_resnet26.none": _cfg(10, _CIFAR10, first_conv="conv1", classifier="fc"),
        "cifar_resnext29_32x4d.none": _cfg(100, _CIFAR100, first_conv="conv_1_3x3", classifier="classifier"),
    }
)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution if the shape changes.

    >>> import torch
    >>> from spear_hf.backbones.cifar import BasicBlock
    >>> BasicBlock(8, 16, stride=2)(torch.zeros(1, 8, 32, 32)).shape
    torch.Size([1, 16, 16, 16])
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.down = None
        if stride != 1 or in_channels != out_channels:
            shortcut = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
            self.down = nn.Sequential(shortcut, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.down is None else self.down(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + shortcut)


class CifarResNet(nn.Module):
    """ResNet-26 for 32x32 images: a stem of 32 channels, then three stages of four blocks of 32, 64 and 128 channels.

    >>> import torch
    >>> from spear_hf.backbones.cifar import CifarResNet
    >>> CifarResNet(widths=(4, 8, 8), depth=1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, num_classes: int = 10, in_chans: int = 3, widths: tuple[int, ...] = (32, 64, 128), depth: int = 4
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.conv1 = nn.Conv2d(in_chans, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        inputs = (widths[0], *widths[:-1])
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    *(BasicBlock(c if i == 0 else w, w, 2 if stage > 0 and i == 0 else 1) for i in range(depth))
                )
                for stage, (c, w) in enumerate(zip(inputs, widths, strict=True))
            )
        )
        self.fc = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.relu(self.bn1(self.conv1(x))))
        return self.fc(x.mean((2, 3)))


class ResNeXtBottleneck(nn.Module):
    """Convolutions 1x1, grouped 3x3 and 1x1, with the module names of RobustBench's AugMix checkpoints.

    >>> import torch
    >>> from spear_hf.backbones.cifar import ResNeXtBottleneck
    >>> ResNeXtBottleneck(8, planes=4, cardinality=2, base_width=32, stride=2)(torch.zeros(1, 8, 16, 16)).shape
    torch.Size([1, 16, 8, 8])
    """

    def __init__(self, in_channels: int, planes: int, cardinality: int, base_width: int, stride: int) -> None:
        super().__init__()
        width = planes * base_width // 64 * cardinality
        self.conv_reduce = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn_reduce = nn.BatchNorm2d(width)
        self.conv_conv = nn.Conv2d(width, width, 3, stride, 1, groups=cardinality, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.conv_expand = nn.Conv2d(width, planes * 4, 1, bias=False)
        self.bn_expand = nn.BatchNorm2d(planes * 4)
        self.downsample = None
        if stride != 1 or in_channels != planes * 4:
            shortcut = nn.Conv2d(in_channels, planes * 4, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(planes * 4))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn_reduce(self.conv_reduce(x)))
        x = F.relu(self.bn(self.conv_conv(x)))
        return F.relu(self.bn_expand(self.conv_expand(x)) + shortcut)


class CifarResNeXt(nn.Module):
    """ResNeXt-29 4x32d of AugMix and RobustBench: a stem of 64 channels, then stages of 256, 512 and 1024 channels.

    >>> import torch
    >>> from spear_hf.backbones.cifar import CifarResNeXt
    >>> CifarResNeXt(cardinality=1, base_width=4)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 100])
    """

    def __init__(self, num_classes: int = 100, in_chans: int = 3, cardinality: int = 4, base_width: int = 32) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.conv_1_3x3 = nn.Conv2d(in_chans, 64, 3, 1, 1, bias=False)
        self.bn_1 = nn.BatchNorm2d(64)
        stages = []
        in_channels = 64
        for planes, stride in ((64, 1), (128, 2), (256, 2)):
            blocks = []
            for i in range(3):
                blocks.append(ResNeXtBottleneck(in_channels, planes, cardinality, base_width, stride if i == 0 else 1))
                in_channels = planes * 4
            stages.append(nn.Sequential(*blocks))
        self.stage_1, self.stage_2, self.stage_3 = stages
        self.classifier = nn.Linear(in_channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn_1(self.conv_1_3x3(x)))
        x = self.stage_3(self.stage_2(self.stage_1(x)))
        return self.classifier(x.mean((2, 3)))


@register_model
def cifar_resnet26(pretrained: bool = False, **kwargs: Any) -> CifarResNet:
    """The paper's ResNet-26 for CIFAR-10 (1.47 M parameters).

    >>> from spear_hf.backbones.cifar import cifar_resnet26
    >>> sum(p.numel() for p in cifar_resnet26().parameters())
    1472554
    """
    return build_model_with_cfg(CifarResNet, "cifar_resnet26", pretrained, **kwargs)


@register_model
def cifar_resnext29_32x4d(pretrained: bool = False, **kwargs: Any) -> CifarResNeXt:
    """The paper's ResNeXt-29 4x32d for CIFAR-100 (6.90 M parameters).

    >>> from spear_hf.backbones.cifar import cifar_resnext29_32x4d
    >>> sum(p.numel() for p in cifar_resnext29_32x4d().parameters())
    6900132
    """
    return build_model_with_cfg(CifarResNeXt, "cifar_resnext29_32x4d", pretrained, **kwargs)
