"""Ask what steering does to representations, and which part of SPeaR does what: one command for each measure.

    python examples/analyze.py amd                  # channel means against the clean source's, by placement and depth
    python examples/analyze.py cka                  # the same for geometry
    python examples/analyze.py probe                # frozen classifier and linear probe, by placement
    python examples/analyze.py amd cka probe        # all three from one run
    python examples/analyze.py gate                 # the hard gate on and off, by corruption
    python examples/analyze.py scarce               # streams without their most confident images
    python examples/analyze.py alpha                # error against alpha and batch size
    python examples/analyze.py gate --model timm/resnet50.tv_in1k --dataset /data/val --corruptions fog,snow --tau 0.4

Everything runs on the embedded model and images, offline, unless told otherwise; a field of SpearConfig is an option.
Each command prints a table and leaves MEASURE.json (every single row) and MEASURE.png in the output folder.
"""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn
from tqdm.auto import tqdm
from transformers import HfArgumentParser

from spear_hf import METHODS, Spear, SpearConfig, SpearError, get_spear_model, load_base_model
from spear_hf.analysis import (
    ImageSet,
    adapted_representations,
    drift,
    gate_ablation,
    mixing_errors,
    placed,
    placements,
    scarce_confidence,
    separability,
    source_representations,
)
from spear_hf.analysis.figures import Draw, bars, heat_map, lines, save_panels
from spear_hf.analysis.tables import Grid, grid, shown, summary
from spear_hf.data.load_stream import load_stream
from spear_hf.data.processor import load_class_names, load_processor
from spear_hf.errors import ConfigError

HERE = Path(__file__).parent
EMBEDDED = {"fashion_mnist": HERE / "fashion_mnist" / "test.parquet"}


def about(text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": text})


def about_list(text: str, *default: float) -> Any:
    return field(default_factory=lambda: list(default), metadata={"help": text})


@dataclass
class Arguments:
    """What to measure it on."""

    model: str = about("A model folder, a Hub id or a timm name.", str(HERE / "fashion_mnist" / "resnet"))
    checkpoint: str | None = about("A .safetensors state_dict for a timm name without weights.", None)
    dataset: str = about("An embedded name (fashion_mnist), a parquet or folder path, or a Hub id.", "fashion_mnist")
    corruptions: str = about('"all" (the 15), a group (noise, blur, weather, digital), or names with commas.', "all")
    severity: float = about("From 1 to 5.", 5.0)
    preset: str = about('Constants for the image size: "imagenet", "cifar", "tiny"; "auto" goes by the size.', "auto")
    limit: int = about("Images of each corruption.", 1024)
    batch_sizes: list[int] = about_list("Images in a batch; scarce takes the first only.", 16, 256)  # noqa: RUF009
    updates: int = about("Steps before a look (amd, cka, probe, alpha), the same at every batch size.", 64)
    alphas: list[float] = about_list("The rows of alpha.", 0.0, 0.25, 0.5, 0.75, 1.0)  # noqa: RUF009
    thresholds: list[float] = about_list(  # noqa: RUF009
        "Source entropies below which scarce takes images away.", 0.0, 0.1, 0.2, 0.3, 0.4
    )
    methods: str = about("Names of METHODS that scarce compares SPeaR with, with commas.", "source,tent,eata")
    before_rsp: bool = about("Look at what an RSP is given rather than at what it makes of it.", False)
    probe_c: float = about("Inverse strength of the probe's penalty.", 1.0)
    seed: int = about("Of the order, the corruptions and the probe's parts.", 0)
    output: str = about("The folder for figures and rows.", "runs/analysis")
    device: str = about('"cpu", "cuda", or "auto".', "auto")


class Study:
    """The model, its images, and where results go."""

    def __init__(self, config: SpearConfig, run: Arguments) -> None:
        self.config, self.run, self.console = config, run, Console()
        self.base = load_base_model(run.model, checkpoint=run.checkpoint)
        self.processor, self.class_names = load_processor(self.base), load_class_names(self.base)
        self.device = run.device if run.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        self.base.to(self.device)
        self.title = f"{Path(run.model).name}, severity {run.severity:g}, {run.limit} images"

    def sets(self, corruptions: str, more: int = 0) -> list[ImageSet]:
        """The images of each domain, the same ones in the same order; `more` follow them."""
        run = self.run
        stream = load_stream(
            str(EMBEDDED.get(run.dataset, run.dataset)),
            corruptions=corruptions,
            severity=run.severity,
            batch_size=256,
            limit=run.limit + more,
            seed=run.seed,
            processor=self.processor,
            class_names=self.class_names,
            preset="cifar" if run.dataset in EMBEDDED and run.preset == "auto" else run.preset,
        )
        parts: dict[str, list[Any]] = {}
        for batch in tqdm(stream, desc=f"images ({corruptions})", unit="batch"):
            parts.setdefault(batch["domain"], []).append(batch)
        return [
            ImageSet(
                domain.split("/")[0],
                torch.cat([b["pixel_values"] for b in batches]).to(self.device),
                torch.cat([b["labels"] for b in batches]),
            )
            for domain, batches in parts.items()
        ]

    def keep(self, name: str, rows: Iterable[Any]) -> None:
        """Every row to NAME.json, with what a rerun needs."""
        path = Path(self.run.output) / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        found = {"config": self.config.to_dict(), "run": asdict(self.run), "rows": [row._asdict() for row in rows]}
        path.write_text(json.dumps(found, indent=1) + "\n")

    def print(self, found: Grid, title: str, corner: str, digits: int = 2) -> None:
        self.console.print(shown(found, f"{title}; {self.title}", corner, digits))

    def draw(self, name: str, panels: dict[str, Grid], draw: Draw, *, y: str, x: str) -> None:
        path = save_panels(Path(self.run.output) / f"{name}.png", panels, draw, y=y, x=x)
        self.console.print(f"saved {path}", highlight=False)


# --- amd, cka, probe -------------------------------------------------------------------------------------------------


def representations(study: Study, measures: set[str]) -> None:
    """One run for all three: adapt, hold the RSPs, look."""
    run, drifts, separated = study.run, [], []
    clean, sets = study.sets("clean")[0], study.sets(run.corruptions)
    with placed(study.base, study.config) as model:
        reference = source_representations(model, clean)
        looks = adapted_representations(
            model, sets, batch_sizes=run.batch_sizes, updates=run.updates, steered=not run.before_rsp
        )
        count = len(placements(model.boundaries[-1].depth)) + 1 + (model.has_batch_norms and study.config.alpha > 0)
        for adapted in tqdm(looks, total=len(sets) * len(run.batch_sizes) * count, unit="look"):
            drifts += drift(adapted, reference) if measures & {"amd", "cka"} else []
            separated += [separability(adapted, c=run.probe_c, seed=run.seed)] if "probe" in measures else []
    for name in sorted(measures & {"amd", "cka"}):
        study.keep(name, drifts)
        panels = {size: grid(rows, "placement", "place", name) for size, rows in by_batch_size(drifts).items()}
        for size, found in panels.items():
            study.print(found, f"{name}, {size}", "placement", 4)
        study.draw(name, panels, lines, y=name.upper(), x="depth")
    if "probe" in measures:
        study.keep("probe", separated)
        panels = {}
        for size, rows in by_batch_size(separated).items():
            found = summary(rows, "placement", ("accuracy", "probe_accuracy", "gap"))
            study.print(found, f"probe, {size}", "placement")
            panels[size] = found.only(("accuracy", "probe_accuracy"))
        study.draw("probe", panels, bars, y="accuracy in %", x="placement")


def by_batch_size(rows: list[Any]) -> dict[str, list[Any]]:
    """ "batch 16" -> its rows."""
    sizes = dict.fromkeys(row.batch_size for row in rows)
    return {f"batch {size}": [row for row in rows if row.batch_size == size] for size in sizes}


# --- gate, scarce, alpha ---------------------------------------------------------------------------------------------


def spear(config: SpearConfig) -> Callable[[nn.Module], Spear]:
    """What makes SPeaR of a copy of the base."""
    return lambda base: Spear(get_spear_model(base, config))


def gate(study: Study) -> None:
    """The hard gate on and off, corruptions from the least to the most uncertain."""
    run, on, off = study.run, replace(study.config, hard_gate=True), replace(study.config, hard_gate=False)
    sets = study.sets(run.corruptions)
    rows = gate_ablation(study.base, sets, spear(on), spear(off), batch_sizes=run.batch_sizes)
    found = list(tqdm(rows, total=len(sets) * len(run.batch_sizes), unit="row"))
    study.keep("gate", found)
    panels = {}
    for size, rows in by_batch_size(sorted(found, key=lambda row: row.entropy)).items():
        columns = ("entropy", "source", "without_gate", "with_gate", "gain", "skipped")
        study.print(summary(rows, "domain", columns, mean=True), f"gate, {size}", "domain")
        panels[size] = summary(rows, "domain", ("without_gate", "with_gate"))
    study.draw("gate", panels, bars, y="error in %", x="from the least uncertain to the most")


FISHER_IMAGES = 2000  # as EATA was published


def scarce(study: Study) -> None:
    """SPeaR and others as confident images are taken away; means are over domains with images at every threshold."""
    run, sets = study.run, study.sets(study.run.corruptions)
    names = [name for name in run.methods.split(",") if name]
    if unknown := [name for name in names if name not in METHODS]:
        raise ConfigError(f"methods={unknown} are not known; METHODS has {', '.join(METHODS)}")
    makers: dict[str, Any] = {name: METHODS[name] for name in names}
    if "eata" in makers:  # its Fisher information, from clean images that are not among those measured
        others = study.sets("clean", more=FISHER_IMAGES)[0].images[run.limit :]
        makers["eata"] = partial(METHODS["eata"], source_images=others)
    makers["SPeaR"] = spear(study.config)
    size = run.batch_sizes[0]
    rows = scarce_confidence(study.base, sets, makers, run.thresholds, batch_size=size)
    found = list(tqdm(rows, total=len(sets) * len(makers) * len(run.thresholds), unit="row"))
    study.keep("scarce", found)
    left = grid([row for row in found if row.method == "SPeaR"], "domain", "threshold", "images")
    study.print(left, "scarce: images left at each threshold", "domain", 0)
    lasting = {row.domain for row in found if row.threshold == max(run.thresholds)}
    errors = grid([row for row in found if row.domain in lasting], "method", "threshold", "error")
    study.print(errors, f"scarce: error in % over the {len(lasting)} domains that last, batch {size}", "method")
    study.draw("scarce", {f"batch {size}": errors}, lines, y="error in %", x="least source entropy")


def alpha(study: Study) -> None:
    """Error against alpha and batch size, without and with learning."""
    run, sets = study.run, study.sets(study.run.corruptions)
    rows = mixing_errors(
        study.base, sets, study.config, alphas=run.alphas, batch_sizes=run.batch_sizes, updates=run.updates
    )
    found = list(tqdm(rows, total=len(sets) * len(run.alphas) * len(run.batch_sizes), unit="cell"))
    study.keep("alpha", found)
    panels = {
        "mixing alone": grid(found, "alpha", "batch_size", "unlearned"),
        f"after {run.updates} updates": grid(found, "alpha", "batch_size", "learned"),
    }
    for title, errors in panels.items():
        study.print(errors, f"alpha, {title}: error in %", "alpha, by batch size")
    study.draw("alpha", panels, heat_map, y="alpha", x="batch size")


ALONE: dict[str, Callable[[Study], None]] = {"gate": gate, "scarce": scarce, "alpha": alpha}
MEASURES = ("amd", "cka", "probe", *ALONE)


def main() -> None:
    parser = HfArgumentParser((SpearConfig, Arguments), description=__doc__)  # pyright: ignore[reportArgumentType]
    parser.add_argument("measures", nargs="+", choices=MEASURES, help="what to measure")
    config, run, asked = parser.parse_args_into_dataclasses()
    study = Study(config, run)
    if looks := {"amd", "cka", "probe"} & set(asked.measures):
        representations(study, looks)
    for name, command in ALONE.items():
        if name in asked.measures:
            command(study)


if __name__ == "__main__":
    try:
        main()
    except SpearError as error:
        sys.exit(f"{type(error).__name__}: {error}")
