"""Many streams in one step: each learns as if it had a model of its own; their states on disk lose nothing."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.errors import CheckpointError, ConfigError, InputError, SpearError
from spear_hf.learning import stream_state
from spear_hf.learning.stream_state import StreamState
from spear_hf.utils.state_file import packed, write_state
from tests.builders import steered

PLAIN = SpearConfig.paper(tau=0.0, learning_rate=0.01, boundaries="all")
STREAMING = SpearConfig(domain_jump=2.0)
CONFIGS = {
    "plain": PLAIN,
    "streaming": STREAMING,
    "two steps": dataclasses.replace(PLAIN, steps=2),
    "stride": dataclasses.replace(STREAMING, learn_stride=2),
    "views": dataclasses.replace(STREAMING, tta_views=2),
}


def learner(
    net: nn.Module, config: SpearConfig = STREAMING, dtype: torch.dtype = torch.float32, **options: Any
) -> Spear:
    model = steered(copy.deepcopy(net).to(dtype), config)
    for parameter in model.adapter_parameters():
        parameter.data = parameter.data.to(dtype)
    return Spear(model, **options)


def images(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(n, 3, 16, 16, generator=torch.Generator().manual_seed(seed)).to(dtype)


def layer_norm_net() -> nn.Module:
    torch.manual_seed(0)
    size = {"img_size": 16, "patch_size": 8, "depth": 4, "embed_dim": 12, "num_heads": 2, "num_classes": 10}
    return timm.create_model("vit_tiny_patch16_224", **size).eval()


def mixed_batches(streams: int, count: int, dtype: torch.dtype) -> list[tuple[list[str], Tensor]]:
    """Uneven, interleaved; stream s moves to another domain at batch 3 + s % 2."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for t in range(count):
        names = [s for s in range(streams) for _ in range(2 + (s * 7 + t) % 3)]
        names = [names[i] for i in torch.randperm(len(names), generator=generator).tolist()]
        scale = torch.tensor([0.3 if t >= 3 + s % 2 else 1.5 for s in names])[:, None, None, None]
        shift = torch.tensor([-3.0 if t >= 3 + s % 2 else s % 3 - 0.5 for s in names])[:, None, None, None]
        found.append(([f"s{s}" for s in names], (images(len(names), t) * scale + shift).to(dtype)))
    return found


def check_same_record(record: Any, expected: Any) -> None:
    for key, value in expected.to_dict().items():
        found = getattr(record, key)
        assert found == (pytest.approx(value, rel=1e-4, abs=1e-5) if isinstance(value, float) else value), key


def check_against_a_model_each(net: nn.Module, config: SpearConfig, streams: int, dtype: torch.dtype) -> list[Any]:
    """Answers, values and records of a step of all streams are those of a model for each; returns the records."""
    many, alone = learner(net, config, dtype), {f"s{i}": learner(net, config, dtype) for i in range(streams)}
    tolerance = {"rtol": 0.0, "atol": 1e-10 if dtype == torch.float64 else 1e-5}
    records = []
    for names, x in mixed_batches(streams, 5, dtype):
        answer = many.step(x, streams=names)
        for name, own in alone.items():
            rows = [i for i, n in enumerate(names) if n == name]
            torch.testing.assert_close(answer[rows], own.step(x[rows]), **tolerance)
            torch.testing.assert_close(many.streams[name].rsp, own.model.snapshot(), **tolerance)
            records.append(many.last[name])  # pyright: ignore
            check_same_record(records[-1], own.last)
    return records


@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("streams", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 8))])
@pytest.mark.parametrize("name", CONFIGS)
def test_streams_learn_as_a_model_each(net: nn.Module, name: str, streams: int, dtype: torch.dtype) -> None:
    records = check_against_a_model_each(net, CONFIGS[name], streams, dtype)
    if name == "streaming" and streams > 1:
        assert len({r.step for r in records if r.new_domain}) > 1, "all domains changed at once"


@pytest.mark.slow
@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize("name", ["plain", "streaming", "two steps"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_streams_learn_as_a_model_each_without_batch_norm(name: str, streams: int, dtype: torch.dtype) -> None:
    check_against_a_model_each(layer_norm_net(), CONFIGS[name], streams, dtype)


def bits(state: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """All of a state_dict, to compare."""
    tensors: dict[str, Tensor] = {}
    rest = json.dumps(packed(state, "state", tensors), sort_keys=True)
    return rest, {key: value.numpy().tobytes() for key, value in tensors.items()}


# --- saving -----------------------------------------------------------------------------------------------------------


def stepped(net: nn.Module, config: SpearConfig = STREAMING, **options: Any) -> Spear:
    tta = learner(net, config, **options)
    for t in range(2):
        tta.step(images(4, t), streams=["a", "a", "b", "b"])
    return tta


def test_a_saved_stream_goes_on_with_the_same_bits(net: nn.Module, tmp_path: Path) -> None:
    tta = stepped(net)
    path = tta.streams["a"].save(tmp_path / "a")
    twin = learner(net)
    twin.streams.load("a", path)
    assert twin.streams["a"].last == tta.streams["a"].last
    for t in range(2, 4):
        assert torch.equal(twin.step(images(4, t), streams="a"), tta.step(images(4, t), streams="a"))


def damaged(kind: str, path: Path, tta: Spear, net: nn.Module) -> None:
    """What is at `path`, a saved stream, made one that does not fit."""
    state, changed = tta.streams["a"], tta.streams["a"].state_dict()
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif kind == "foreign":
        path.write_bytes(b"no stream")
    elif kind == "another configuration":
        stepped(net, PLAIN).streams["a"].save(path)
    elif kind == "another base":
        other = copy.deepcopy(net)
        other.get_submodule("fc").weight.data.add_(1)  # pyright: ignore
        stepped(other).streams["a"].save(path)
    else:
        if kind == "missing":
            del changed["statistics"]
        elif kind == "NaN":
            changed["optimizer"]["exp_avg"][0] = float("nan")
        else:
            changed["rsp"] = {key: value[:-1] for key, value in changed["rsp"].items()}
        facts = {"format_version": 1, "name": "a", "last": None, "base": state.base() if state.base else None}
        write_state(path, changed, facts)


DAMAGES = ["truncated", "foreign", "another configuration", "another base", "missing", "NaN", "shapes"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_file_that_does_not_fit_changes_nothing(net: nn.Module, tmp_path: Path, kind: str) -> None:
    tta = stepped(net)
    path = tta.streams["a"].save(tmp_path / "a")
    damaged(kind, path, tta, net)
    before = bits(tta.streams["b"].state_dict())
    with pytest.raises((CheckpointError, ConfigError)):
        tta.streams["b"].load(path)
    assert bits(tta.streams["b"].state_dict()) == before


def test_a_record_of_another_form_is_refused_and_nothing_is_changed(net: nn.Module, tmp_path: Path) -> None:
    tta = stepped(net)
    path = tta.streams["a"].save(tmp_path / "a")
    path.write_bytes(path.read_bytes().replace(b"anchor_loss", b"anchor_lnss"))
    before = bits(tta.streams["b"].state_dict())
    with pytest.raises(CheckpointError, match=r"a\.safetensors: its record of the last step has another form"):
        tta.streams["b"].load(path)
    assert bits(tta.streams["b"].state_dict()) == before


def test_a_whole_learner_goes_on_with_its_streams(net: nn.Module) -> None:
    tta, twin = stepped(net), learner(net)
    twin.load_state_dict(copy.deepcopy(tta.state_dict()))
    x = images(4, 9)
    assert torch.equal(twin.step(x, streams=list("abca")), tta.step(x, streams=list("abca")))


def test_a_state_with_one_bad_stream_changes_none(net: nn.Module) -> None:
    tta = stepped(net)
    state, before = copy.deepcopy(tta.state_dict()), bits(tta.state_dict())
    del state["streams"]["b"]["trial"]
    with pytest.raises(SpearError):
        tta.load_state_dict(state)
    assert bits(tta.state_dict()) == before


@pytest.mark.parametrize("streams", [{"": None}, {"a": None}, [1], {"a\n": {}}])
def test_streams_of_another_form_change_nothing(net: nn.Module, streams: Any) -> None:
    tta = stepped(net)
    tta.step(images(4))
    state = learner(net).state_dict()
    state["streams"] = streams
    before = bits(tta.state_dict())
    with pytest.raises(SpearError):
        tta.load_state_dict(state)
    assert bits(tta.state_dict()) == before


def test_a_state_is_not_loaded_while_a_stream_is_stepped(net: nn.Module) -> None:
    tta = stepped(net)
    state = learner(net).state_dict()
    with tta.streams.held(["a"]), pytest.raises(InputError, match=r"\['a'\] are being stepped"):
        tta.load_state_dict(state)
    assert sorted(tta.streams) == ["a", "b"]
    tta.load_state_dict(state)
    assert not tta.streams


# --- on disk ----------------------------------------------------------------------------------------------------------


def rounds(tta: Spear, start: int = 0, count: int = 2) -> list[Tensor]:
    """Five streams, one after the other."""
    return [tta.step(images(2, 10 * t + s), streams=f"s{s}") for t in range(start, start + count) for s in range(5)]


def test_two_streams_in_memory_give_the_bits_of_all(net: nn.Module) -> None:
    few, all_of_them = learner(net, max_streams_in_memory=2), learner(net)
    assert all(torch.equal(a, b) for a, b in zip(rounds(few), rounds(all_of_them), strict=True))
    assert len(few.streams.in_memory) == 2
    assert sorted(few.streams) == sorted(all_of_them.streams)


@pytest.mark.slow
def test_a_new_learner_on_the_same_folder_goes_on(net: nn.Module, tmp_path: Path) -> None:
    tta, expected = learner(net, streams_folder=tmp_path), learner(net)
    rounds(tta)
    tta.streams.save()
    rounds(expected)
    twin = learner(net, streams_folder=tmp_path)
    assert sorted(twin.streams) == sorted(expected.streams)
    assert all(torch.equal(a, b) for a, b in zip(rounds(twin, 2), rounds(expected, 2), strict=True))


def test_a_full_disk_loses_nothing_and_warns(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    few, all_of_them = learner(net, max_streams_in_memory=2), learner(net)
    with monkeypatch.context() as patch:
        patch.setattr("spear_hf.utils.state_file.write_atomically", full)
        with pytest.warns(RuntimeWarning, match="stays in memory"):
            found = rounds(few, count=1)
        assert len(few.streams.in_memory) == 5
    expected = rounds(all_of_them)
    assert all(torch.equal(a, b) for a, b in zip(found + rounds(few, 1, 1), expected, strict=True))
    assert len(few.streams.in_memory) == 2


ODD = ["../x", "a/b", ".", "..", "Straße 7 \N{SNOWMAN}", "Cam", "cam", "x" * 1000, "con", "a" * 64, "a" * 65]


def test_names_that_look_like_paths_stay_in_the_folder(net: nn.Module, tmp_path: Path) -> None:
    folder = tmp_path / "streams"
    tta = learner(net, PLAIN, streams_folder=folder, max_streams_in_memory=1)
    tta.step(images(len(ODD)), streams=ODD)
    tta.streams.save()
    assert [path.name for path in tmp_path.iterdir()] == ["streams"]
    assert len({path.name.lower() for path in folder.iterdir()}) == len(ODD)
    assert sorted(learner(net, PLAIN, streams_folder=folder).streams) == sorted(ODD)


def test_a_stream_on_disk_of_another_configuration_is_refused(net: nn.Module, tmp_path: Path) -> None:
    stepped(net, streams_folder=tmp_path).streams.save()
    tta = learner(net, PLAIN, streams_folder=tmp_path)
    with pytest.raises(ConfigError, match=r"a-\w+.safetensors: this state was learned with another configuration"):
        tta.step(images(2), streams=["new", "a"])
    assert sorted(tta.streams) == ["a", "b"]
    assert tta.streams.in_memory == []


def test_a_file_that_was_renamed_is_passed_over(net: nn.Module, tmp_path: Path) -> None:
    tta = stepped(net, streams_folder=tmp_path)
    tta.streams.save()
    tta.streams.path("a").rename(tmp_path / "cam.safetensors")
    with pytest.warns(RuntimeWarning, match=r"cam\.safetensors .*rename the file"):
        twin = learner(net, streams_folder=tmp_path)
    assert list(twin.streams) == ["b"]


@pytest.mark.parametrize("name", ["", "cam\n", "x" * 5000, "\0", "\ud800", "a\u2028b", "\u202ea", 7, ["a"]])
def test_names_that_are_no_line_of_text_are_refused(net: nn.Module, name: Any) -> None:
    tta = learner(net, PLAIN)
    with pytest.raises(InputError, match="stream name"):
        tta.step(images(2), streams=[name, "a"])
    assert len(tta.streams) == 0


@pytest.mark.parametrize("most", [0, 1.5, True, "3"])
def test_other_numbers_of_streams_in_memory_are_refused(net: nn.Module, most: Any) -> None:
    with pytest.raises(ConfigError, match=r"max_streams_in_memory=.* is not allowed; give at least 1, or None"):
        learner(net, PLAIN, max_streams_in_memory=most)


def test_a_stream_whose_file_is_gone_is_named_with_the_way_out(net: nn.Module, tmp_path: Path) -> None:
    tta = learner(net, PLAIN, max_streams_in_memory=1, streams_folder=tmp_path)
    for name in ("a", "b"):
        tta.step(images(2), streams=name)
    tta.streams.path("a").unlink()
    with pytest.raises(CheckpointError, match=r"stream 'a' was on disk and cannot be read .* del streams\['a'\]"):
        tta.step(images(2), streams="a")
    del tta.streams["a"]
    tta.step(images(2), streams="a")


def test_only_a_state_of_its_own_is_put(net: nn.Module) -> None:
    tta, other = learner(net, PLAIN), learner(net)
    for each in (tta, other):
        each.step(images(2), streams="a")
    for state, why in ((other.streams["a"], "of another learner"), (tta.stream, "AdapterStream"), ("a", "a str")):
        with pytest.raises(InputError, match=why):
            tta.streams.put("b", state)  # pyright: ignore
    with pytest.raises(InputError, match="that of stream 'a', and both would learn into it"):
        tta.streams.put("b", tta.streams["a"])
    assert list(tta.streams) == ["a"]


def test_streams_that_are_no_names_are_refused(net: nn.Module) -> None:
    with pytest.raises(InputError, match="streams is a int"):
        learner(net, PLAIN).step(images(2), streams=7)  # pyright: ignore


def test_a_step_that_fails_makes_no_stream(net: nn.Module) -> None:
    tta = stepped(net)
    before = bits(tta.streams["a"].state_dict())
    with pytest.raises(RuntimeError, match="channels"):
        tta.step(torch.randn(2, 1, 16, 16), streams=["new", "a"])
    assert bits(tta.streams["a"].state_dict()) == before
    assert sorted(tta.streams) == ["a", "b"]


# --- predict ----------------------------------------------------------------------------------------------------------


def test_predict_changes_nothing_and_answers_as_the_next_step(net: nn.Module) -> None:
    tta = stepped(net)
    before, x = bits(tta.state_dict()), images(4, 5)
    found = tta.predict(x, streams=list("abab"))
    assert bits(tta.state_dict()) == before
    torch.testing.assert_close(tta.step(x, streams=list("abab")), found, rtol=0, atol=1e-6)


def test_unknown_streams_and_other_numbers_of_names_are_refused(net: nn.Module) -> None:
    tta = stepped(net)
    with pytest.raises(InputError, match=r"\['new'\] are not known"):
        tta.predict(images(2), stream="new")
    for call in (tta.step, tta.predict):
        with pytest.raises(InputError, match="1 names for 2 images"):
            call(images(2), streams=["a"])
    assert sorted(tta.streams) == ["a", "b"]


def test_a_call_after_a_step_depends_on_the_adapter_alone(net: nn.Module) -> None:
    tta, x = stepped(net), images(4, 5)
    tta.step(x)
    fresh = steered(copy.deepcopy(net), STREAMING)
    fresh.restore(tta.model.snapshot())
    assert torch.equal(tta.model(x), fresh(x))


def test_named_streams_leave_the_adapter_alone(net: nn.Module) -> None:
    tta = learner(net)
    before = tta.model.snapshot()
    tta.step(images(4), streams="a")
    torch.testing.assert_close(tta.model.snapshot(), before, rtol=0, atol=0)


def test_reset_forgets_all_streams(net: nn.Module, tmp_path: Path) -> None:
    tta = stepped(net, max_streams_in_memory=1, streams_folder=tmp_path)
    tta.reset()
    assert len(tta.streams) == 0
    assert not list(tmp_path.iterdir())
    first = learner(net)
    assert torch.equal(tta.step(images(4), streams="a"), first.step(images(4), streams="a"))


def finite(state: StreamState) -> bool:
    return not stream_state._non_finite(state.state_dict())


@pytest.mark.parametrize("names", [None, ["a", "b", "a", "b"]])
def test_a_huge_pixel_is_not_remembered(net: nn.Module, names: list[str] | None) -> None:
    tta = learner(net, dataclasses.replace(STREAMING, learning_rate=0.0, domain_jump=0.0))
    tta.step(images(4, 0), streams=names)
    x = images(4, 1)
    x[0, 0, 3, 3] = 1e20
    tta.step(x, streams=names)
    assert all(finite(state) for state in (tta.stream, *tta.streams.values()))
    assert all(bool(torch.isfinite(tta.step(images(4, t), streams=names)).all()) for t in range(2, 5))
