from dataclasses import fields, replace
from io import StringIO
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from rich.console import Console

from spear_hf.adapters.card import _configuration, render_card
from spear_hf.adapters.card_metrics import CardMetrics, CardRow
from spear_hf.backbones.origin import Origin
from spear_hf.config import SpearConfig
from spear_hf.errors import AdapterFormatError
from spear_hf.evaluation.report import DomainResult, Report
from spear_hf.steering.model import SpearModel
from spear_hf.utils.plotting import new_figure, save_figure
from tests.hub_server import LoopbackHub

RESULTS = CardMetrics(
    "fashion_mnist",
    online=(CardRow("fog/5", 1024, 40.5, 30.25),),
    frozen=(CardRow("fog/5", 512, 41.0, 31.0), CardRow("clean", 512, 6.0, 6.5)),
    protocol="single",
    batch_size=64,
    seed=3,
)


def test_a_card_says_what_it_is_for_and_what_it_changed(model: SpearModel, tmp_path: Path) -> None:
    origin = Origin("timm", "timm/resnet50.a1_in1k", "abc123")
    text = (model.save_pretrained(tmp_path / "a", origin=origin, results=RESULTS) / "README.md").read_text()
    assert "`timm/resnet50.a1_in1k` (TinyNet)" in text
    assert "at commit `abc123`" in text
    assert "Protocol single, batches of 64, seed 3." in text
    assert "| fog/5 | 1,024 | 40.50 | 30.25 | +10.25 |" in text
    assert "the error goes from 6.00 to 6.50" in text
    assert "| 0 | `stem.2` (out) | 8 | 0.2828 | 0.2828 |" in text
    assert "| 1 | `layer1.0` (out) | 8 | not steered | |" in text
    assert "alpha 0.5, learning_rate" in text


def test_a_card_lists_every_field_that_differs_from_the_default() -> None:
    odd = SpearConfig(boundaries=(0, 2), alpha=0.25, tta_views=4, learn_stride=2, adam_beta1=0.8, hard_gate=False)
    text = _configuration(odd)
    assert text.endswith(
        "Other than the defaults: boundaries 0, 2, alpha 0.25, hard_gate False, learn_stride 2, tta_views 4, "
        "adam_beta1 0.8."
    )
    assert "defaults" not in _configuration(SpearConfig())


@pytest.mark.parametrize("field", [f.name for f in fields(SpearConfig)])
def test_no_field_is_left_out_of_a_card(field: str) -> None:
    odd = {
        "learning_entropy": 0.3,
        "boundaries": "all",
        "num_groups": 3,
        "stem": "patch_embed",
        "hard_gate": False,
        "class_skew": False,
        "domain_jump": 2.0,
        "anchor_growth": 3.0,
        "steps": 2,
    }
    default = getattr(SpearConfig(), field)
    other = odd[field] if field in odd else 0.75 if isinstance(default, float) else default + 1
    assert (
        f"{field} {other}" in _configuration(SpearConfig(**{field: other})).rpartition("Other than the defaults: ")[2]
    )


def test_its_front_matter_is_what_the_hub_reads(hub: LoopbackHub, model: SpearModel, tmp_path: Path) -> None:
    origin = Origin("timm", "timm/resnet50.a1_in1k")
    folder = model.save_pretrained(tmp_path / "a", origin=origin, results=RESULTS, source="me/fog")
    card = ModelCard.load(folder / "README.md")
    card.validate()
    assert (card.data.library_name, card.data.base_model) == ("spear-hf", "timm/resnet50.a1_in1k")
    assert card.data.get("base_model_relation") == "adapter"
    assert card.data.pipeline_tag == "image-classification"
    assert card.data.model_name == "me/fog"
    after = [r for r in card.data.eval_results or [] if r.metric_name == "error in % while it learned"]
    assert [(r.dataset_type, r.dataset_config, r.metric_value) for r in after] == [("fashion_mnist", "fog/5", 30.25)]


@pytest.mark.parametrize("name", ["/home/someone/model", "models/a/b", None])
def test_a_base_that_is_no_hub_id_is_not_in_the_front_matter(
    model: SpearModel, tmp_path: Path, name: str | None
) -> None:
    folder = model.save_pretrained(tmp_path / "a", origin=Origin("transformers", name))
    assert ModelCard.load(folder / "README.md").data.base_model is None


def test_a_folder_that_reads_like_a_hub_id_is_a_folder(
    model: SpearModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "resnet").mkdir(parents=True)
    folder = model.save_pretrained(tmp_path / "a", origin=Origin("transformers", "models/resnet"))
    assert ModelCard.load(folder / "README.md").data.base_model is None


def test_the_same_files_give_the_same_card(model: SpearModel, tmp_path: Path) -> None:
    folder = model.save_pretrained(tmp_path / "a", results=RESULTS, source="me/fog")
    assert (folder / "README.md").read_text() == render_card(folder, "me/fog")
    assert (folder / "README.md").read_text() == render_card(folder, "me/fog")


def test_figures_of_other_weights_are_dropped(model: SpearModel, tmp_path: Path) -> None:
    folder = model.save_pretrained(tmp_path / "a", results=RESULTS)
    model.save_pretrained(folder)
    assert (folder / "metrics.json").exists()  # about these very weights
    model.set_scale(0.5)
    model.save_pretrained(folder)
    assert not (folder / "metrics.json").exists()
    assert "No errors were measured" in (folder / "README.md").read_text()


def test_a_card_of_ones_own_is_kept(model: SpearModel, tmp_path: Path) -> None:
    folder = model.save_pretrained(tmp_path / "a")
    (folder / "README.md").write_text("# mine\n")
    model.save_pretrained(folder, results=RESULTS)
    assert (folder / "README.md").read_text() == "# mine\n"


def test_names_cannot_break_out_of_the_card(model: SpearModel, tmp_path: Path) -> None:
    rows = (replace(RESULTS.online[0], domain="fog | <b>"),)
    origin = Origin("timm", "x`|<script>")
    text = (
        model.save_pretrained(tmp_path / "a", origin=origin, results=replace(RESULTS, online=rows)) / "README.md"
    ).read_text()
    body = text.split("\n---\n")[1]
    assert "<script>" not in body
    assert "| fog &#124; &#60;b&#62; |" in body


def test_metrics_of_another_form_are_refused(model: SpearModel, tmp_path: Path) -> None:
    folder = model.save_pretrained(tmp_path / "a", results=RESULTS)
    (folder / "metrics.json").write_text('{"weights_sha256": 1, "online": 3}')
    render_card(folder)  # of other weights: not looked at
    (folder / "metrics.json").write_text("[]")
    with pytest.raises(AdapterFormatError, match="invalid entry"):
        render_card(folder)


@pytest.mark.slow
def test_a_repo_of_several_adapters_has_a_card_of_its_own(hub: LoopbackHub, model: SpearModel) -> None:
    model.push_to_hub("me/fog", subfolder="fog")
    model.push_to_hub("me/fog", subfolder="snow")
    text = hub.head("me/fog")["README.md"].decode()
    assert "- [`fog`](fog/README.md)\n- [`snow`](snow/README.md)" in text
    assert ModelCard(text).data.library_name == "spear-hf"
    assert 'subfolder="snow")' in hub.head("me/fog")["snow/README.md"].decode()
    hub.put("me/fog", {"README.md": b"# mine\n"})
    model.push_to_hub("me/fog", subfolder="rain")
    assert hub.head("me/fog")["README.md"] == b"# mine\n"


NASTY = ["a|b", "`rm -rf`", "<script>alert(1)</script>", "[/", "[x](http://evil)", r"$\x$", "![i](u)", "a\nb"]


@pytest.mark.parametrize("name", NASTY)
def test_a_name_from_outside_is_text_in_a_card(model: SpearModel, tmp_path: Path, name: str) -> None:
    results = replace(RESULTS, dataset=name, online=(CardRow(name, 8, 40.0, 30.0),))
    saved = model.save_pretrained(tmp_path / "a", origin=Origin("timm", name.replace("\n", " ")), results=results)
    body = (saved / "README.md").read_text().split("---\n", 2)[2]
    for markup in ("<script", "](http", "![", "$\\x$"):
        assert markup not in body.replace(f"`{name}`", "")
    row = next(line for line in body.splitlines() if "| 40.00 | 30.00 |" in line)
    assert row.count("|") == 6


@pytest.mark.parametrize("name", NASTY)
def test_a_name_from_outside_is_text_in_tables_and_figures(tmp_path: Path, name: str) -> None:
    report = Report([DomainResult(name, 8, {name: 60.0, "SPeaR": 45.0})], [name, "SPeaR"])
    console = Console(file=StringIO(), width=300)
    console.print(report.table(name))
    assert name.split("\n")[0] in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    figure = new_figure(2, 2)
    figure.subplots().set_title(name)
    assert save_figure(figure, tmp_path / "a.png", dpi=20).stat().st_size > 0
