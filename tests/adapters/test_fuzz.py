"""Input from outside, mutated at random: the result is valid or a SpearError, and the base is unchanged."""

import json
import shutil
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np
from PIL import Image
from torch import nn

from spear_hf import GuardPolicy, SpearConfig, corrupt
from spear_hf.data.corruptions import CORRUPTIONS
from spear_hf.data.decode import decode_rgb
from spear_hf.data.labels import match_classes
from spear_hf.errors import AdapterFormatError, SpearError
from spear_hf.steering.model import SpearModel

FEW_AND_MANY = pytest.mark.parametrize("examples", [20, pytest.param(300, marks=pytest.mark.slow)])


def fuzz(examples: int, **strategies: Any) -> Callable[[Callable[..., None]], None]:
    """Run the decorated check at once, on this many examples."""

    def run(check: Callable[..., None]) -> None:
        few = settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        few(given(**strategies)(check))()

    return run


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
EDIT = st.tuples(
    st.sampled_from(["flip", "cut", "insert", "repeat"]), st.floats(0, 1), st.binary(min_size=1, max_size=9)
)
EDITS = st.lists(EDIT, min_size=1, max_size=3)


def mutated(raw: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    """`raw` after some edits, each at a place given as a fraction of its length."""
    for kind, where, new in edits:
        at = int(where * len(raw))
        if kind == "flip":
            raw = raw[:at] + bytes(b ^ n for b, n in zip(raw[at:], new, strict=False)) + raw[at + len(new) :]
        elif kind == "cut":
            raw = raw[:at]
        elif kind == "insert":
            raw = raw[:at] + new + raw[at:]
        else:
            raw = raw[:at] + raw[at : at + 64] + raw[at:]
    return raw


def unless_refused(act: Callable[[], Any]) -> Any:
    """The result of `act`, or None if it raises a SpearError; any other exception is a failure."""
    try:
        return act()
    except SpearError:
        return None


def assert_loads_or_is_refused(net: nn.Module, folder: Path) -> None:
    before = {k: v.clone() for k, v in net.state_dict().items()}
    model = unless_refused(lambda: SpearModel.from_pretrained(net, folder))
    if model is not None:
        assert all(bool(torch.isfinite(p).all()) for p in model.adapter_parameters())
        model.unload()
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(p.requires_grad for p in net.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def copied(folder: Path, temporary: str) -> Path:
    return Path(shutil.copytree(folder, Path(temporary) / "fog"))


@FEW_AND_MANY
@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_bytes_of_an_adapter_that_were_changed(net: nn.Module, saved: Path, name: str, examples: int) -> None:
    @fuzz(examples, edits=EDITS)
    def check(edits: list[tuple[str, float, bytes]]) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            own = copied(saved, temporary)
            (own / name).write_bytes(mutated((own / name).read_bytes(), edits))
            assert_loads_or_is_refused(net, own)


@FEW_AND_MANY
def test_values_of_an_adapters_configuration_that_were_changed(net: nn.Module, saved: Path, examples: int) -> None:
    """The file stays valid JSON; one of its values, at any depth, is replaced."""

    @fuzz(examples, data=st.data())
    def check(data: st.DataObject) -> None:
        config = json.loads((saved / "adapter_config.json").read_text())
        place: Any = config
        key = data.draw(st.sampled_from(sorted(config)))
        while isinstance(place[key], (dict, list)) and place[key] and data.draw(st.booleans()):
            place = place[key]
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        place[key] = data.draw(JSON)
        with tempfile.TemporaryDirectory() as temporary:
            own = copied(saved, temporary)
            (own / "adapter_config.json").write_text(json.dumps(config))
            assert_loads_or_is_refused(net, own)


@FEW_AND_MANY
@pytest.mark.parametrize("kind", [SpearConfig, GuardPolicy])
def test_a_configuration_of_any_values(kind: Any, examples: int) -> None:
    names = st.sampled_from(sorted(kind().to_dict())) | st.text(max_size=9)

    @fuzz(examples, values=st.dictionaries(names, JSON, max_size=4))
    def check(values: dict[str, Any]) -> None:
        config = unless_refused(lambda: kind.from_dict(values))
        assert config is None or kind.from_json(config.to_json()) == config


@FEW_AND_MANY
@pytest.mark.parametrize("kind", [SpearConfig, GuardPolicy])
def test_a_configuration_of_any_text(kind: Any, examples: int) -> None:
    @fuzz(examples, text=st.text(max_size=60) | JSON.map(json.dumps))
    def check(text: str) -> None:
        config = unless_refused(lambda: kind.from_json(text))
        assert config is None or isinstance(config, kind)


@pytest.mark.parametrize("kind", [SpearConfig, GuardPolicy])
@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 10_000, '{"a": 1e999999}'], ids=["deep", "digits", "exponent"])
def test_malicious_text_is_refused(kind: Any, text: str) -> None:
    with pytest.raises(SpearError):
        kind.from_json(text)


def test_a_number_of_ten_thousand_digits_is_no_configuration_of_an_adapter(net: nn.Module, saved: Path) -> None:
    (saved / "adapter_config.json").write_text('{"peft_type": ' + "9" * 10_000 + "}")
    with pytest.raises(AdapterFormatError, match="is not JSON"):
        SpearModel.from_pretrained(net, saved)


ARRAYS = st_np.arrays(
    st.sampled_from([np.uint8, np.uint16, np.float32, np.bool_, np.int64]),
    st_np.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=40),
    elements={"allow_nan": True},
    fill=st.just(1),
)


@FEW_AND_MANY
def test_any_array_is_corrupted_or_refused(examples: int) -> None:
    names = st.sampled_from([*CORRUPTIONS, "fogg", ""])
    severities = st.sampled_from([0, 0.5, 1, 3.3, 5, 6, -1, float("nan"), float("inf"), 1e-300])

    @fuzz(examples, image=ARRAYS, name=names, severity=severities)
    def check(image: np.ndarray, name: str, severity: float) -> None:
        before = image.copy()
        found = unless_refused(lambda: corrupt(image, name, severity, np.random.default_rng(0), preset="cifar"))
        assert found is None or (found.dtype, found.shape) == (np.uint8, image.shape)
        np.testing.assert_array_equal(image, before)


@FEW_AND_MANY
def test_any_array_is_decoded_or_refused(examples: int) -> None:
    @fuzz(examples, image=ARRAYS)
    def check(image: np.ndarray) -> None:
        found = unless_refused(lambda: decode_rgb(image, lambda: "row 3"))
        assert found is None or (found.dtype, found.ndim, found.shape[2]) == (np.uint8, 3, 3)


@FEW_AND_MANY
@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
@pytest.mark.filterwarnings("ignore")  # Pillow warns about damaged files
def test_any_file_is_decoded_or_refused(form: str, examples: int) -> None:
    file = BytesIO()
    Image.fromarray(np.arange(48 * 3, dtype=np.uint8).reshape(8, 6, 3)).save(file, form)

    @fuzz(examples, edits=EDITS)
    def check(edits: list[tuple[str, float, bytes]]) -> None:
        found = unless_refused(lambda: decode_rgb(mutated(file.getvalue(), edits), lambda: "row 3"))
        assert found is None or (found.dtype, found.ndim, found.shape[2]) == (np.uint8, 3, 3)


NAMES = st.none() | st.lists(st.text(alphabet="ab_ n0123456789", max_size=10), max_size=5)


@FEW_AND_MANY
def test_any_classes_and_labels_are_matched_or_refused(examples: int) -> None:
    @fuzz(examples, source=NAMES, model=NAMES, labels=st.lists(st.integers(-2, 7), max_size=6))
    def check(source: list[str] | None, model: list[str] | None, labels: list[int]) -> None:
        found = unless_refused(lambda: match_classes(source, model)(np.array(labels, dtype=np.int64)))
        assert found is None or len(found) == len(labels)
        assert found is None or model is None or not len(found) or int(found.max()) < len(model)
