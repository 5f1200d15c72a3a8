from pathlib import Path

import pytest
from torch import nn

from spear_hf.adapters.containment import contained
from spear_hf.adapters.serialization import read_adapter
from spear_hf.adapters.upload import push
from spear_hf.errors import AdapterFormatError
from spear_hf.steering.model import SpearModel
from tests.hub_server import LoopbackHub

NAMES = ["adapter_config.json", "adapter_model.safetensors", "README.md", "metrics.json"]


def link_out(folder: Path, name: str) -> Path:
    """Put a link to a secret in the place of a file."""
    secret = folder.parent / "secret"
    secret.write_text("spear-hf writes this card anew")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    return secret


@pytest.mark.parametrize("name", NAMES)
def test_a_link_out_of_the_folder_is_not_followed(net: nn.Module, saved: Path, name: str, hub: LoopbackHub) -> None:
    link_out(saved, name)
    with pytest.raises(AdapterFormatError, match=r"is a link to .*secret, outside of its folder"):
        push(saved, "me/fog")
    assert not any("secret" in str(files) for repo in hub.repos.values() for files in repo.commits.values())
    if name in NAMES[:2]:
        with pytest.raises(AdapterFormatError, match="outside of its folder"):
            SpearModel.from_pretrained(net, saved)


@pytest.mark.parametrize("name", NAMES[:2])
def test_a_link_to_itself_is_refused(net: nn.Module, saved: Path, name: str) -> None:
    (saved / name).unlink()
    (saved / name).symlink_to(saved / name)
    with pytest.raises(AdapterFormatError, match=r"leads to itself|holds no"):
        SpearModel.from_pretrained(net, saved)


def test_a_save_replaces_a_link_and_writes_nothing_where_it_led(model: SpearModel, saved: Path) -> None:
    secret = link_out(saved, "adapter_model.safetensors")
    model.save_pretrained(saved)
    assert secret.read_text() == "spear-hf writes this card anew"
    assert read_adapter(saved)


def test_links_within_the_folder_and_to_the_folder_are_followed(net: nn.Module, saved: Path) -> None:
    (saved / "adapter_config.json").rename(saved / "real.json")
    (saved / "adapter_config.json").symlink_to("real.json")
    saved.with_name("link").symlink_to(saved)
    SpearModel.from_pretrained(net, saved.with_name("link"))
    with pytest.raises(AdapterFormatError, match="outside of its folder"):
        contained(saved, "../x")
