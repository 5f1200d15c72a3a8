"""A boundary of several tensors, where streams run side by side."""

import pytest
import timm
import torch
from torch import nn

from spear_hf.boundaries import find_boundaries, search_boundaries
from spear_hf.errors import NoBoundariesError

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class TwoStreams(nn.Module):
    """One block of two streams that look at each other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)

    def forward(self, streams):
        x, y = streams
        return [x + self.b(y), y + self.a(x)]


class Net(nn.Module):
    """A stem for each stream, four blocks, a head that reads both."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(3, 8, 4, 4)
        self.blocks = nn.Sequential(*(TwoStreams(8) for _ in range(4)))
        self.head = nn.Linear(16, 10)

    def forward(self, image):
        streams = self.blocks([self.left(image).relu(), self.right(image).relu()])
        return self.head(torch.cat([s.mean((2, 3)) for s in streams], 1))


def parts(boundaries, depth):
    return [(b.module, b.where, b.output_slot, b.part) for b in boundaries if b.depth == depth]


def test_two_streams_make_boundaries_of_two_parts():
    found = search_boundaries(Net(), 2, inputs=IMAGES)
    assert found.source == "joint"
    assert parts(found.boundaries, 0) == [("blocks.0", "in", (0, 0), 0), ("blocks.0", "in", (0, 1), 1)]
    assert parts(found.boundaries, 2) == [("blocks.3", "out", (0,), 0), ("blocks.3", "out", (1,), 1)]


def test_parts_have_keys_of_their_own():
    assert [b.key for b in find_boundaries(Net(), 1, inputs=IMAGES)] == ["0", "0_1", "1", "1_1"]


@pytest.mark.slow
def test_crossvit_is_steered_in_both_token_streams():
    with torch.device("meta"):
        found = find_boundaries(timm.create_model("crossvit_9_240"))
    assert [(b.depth, b.channels, b.channel_axis) for b in found] == [
        (depth, channels, -1) for depth in range(4) for channels in (128, 256)
    ]


@pytest.mark.slow
def test_hrnet_is_steered_at_every_resolution():
    with torch.device("meta"):
        found = find_boundaries(timm.create_model("hrnet_w18_small"))
    widths = {depth: [b.channels for b in found if b.depth == depth] for depth in range(5)}
    assert widths == {0: [64], 1: [128], 2: [16, 32], 3: [16, 32, 64], 4: [16, 32, 64, 128]}


class Cell(nn.Module):
    """Reads the outputs of the two cells before it."""

    def __init__(self) -> None:
        super().__init__()
        self.new, self.old = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1)), nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1))

    def forward(self, x, before):
        return self.new(x).relu() + self.old(before).relu()


class Cells(nn.Module):
    """A stem, four cells, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 10)
        self.cells = nn.ModuleList(Cell() for _ in range(4))

    def forward(self, image):
        before = x = self.stem(image)
        for cell in self.cells:
            x, before = cell(x, before), x
        return self.head(x.mean((2, 3)))


def test_a_cell_that_reads_the_two_before_it_is_steered_where_it_reads():
    found = find_boundaries(Cells(), 2, inputs=IMAGES)
    assert parts(found, 1) == [("cells.2", "in", (1,), 0), ("cells.1", "out", (), 1)]


@pytest.mark.slow
def test_a_nasnet_cell_is_steered_where_it_reads():
    with torch.device("meta"):
        found = find_boundaries(timm.create_model("pnasnet5large"))
    assert parts(found, 1) == [("cell_4", "in", (), 0), ("cell_3", "out", (), 1)]


class Bypass(nn.Module):
    """Four residual blocks, and the brightness of the image handed to the head past all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(4))
        self.brightness, self.head = nn.Linear(3, 8), nn.Linear(8, 10)

    def forward(self, image):
        x = self.stem(image).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1) + self.brightness(image.mean((2, 3))))


def test_a_way_around_the_body_is_part_of_the_boundary():
    found = find_boundaries(Bypass(), inputs=IMAGES)
    assert {b.module for b in found if b.depth == 1} == {"blocks.0", "brightness"}


class Opaque(nn.Module):
    """As above, but no module takes or returns what goes around: an RSP cannot be put there."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 10)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(4))

    def forward(self, image):
        x = self.stem(image).flatten(2).transpose(1, 2)
        around = image.mean((1, 2, 3), keepdim=True)[..., 0].exp()
        for block in self.blocks:
            x = block(x) * around
        return self.head(x.mean(1))


def test_a_bypass_that_no_hook_reaches_is_named():
    with pytest.raises(NoBoundariesError, match=r"'blocks.3', the last of 4 .* a function of the image"):
        find_boundaries(Opaque(), inputs=IMAGES)
