"""Measure what steering does to representations, and which part of SPeaR does what; one word for each measure.

    python examples/analyze.py amd                  # channel means against the clean source's, by placement and depth
    python examples/analyze.py cka                  # the same for geometry
    python examples/analyze.py probe                # frozen classifier and linear probe, by placement
    python examples/analyze.py amd cka probe        # all three from one run
    python examples/analyze.py gate                 # the hard gate on and off, by corruption
    python examples/analyze.py scarce               # streams without their most confident images
    python examples/analyze.py alpha                # error against alpha and batch size
    python examples/analyze.py gate --model timm/resnet50.tv_in1k --dataset /data/val --corruptions fog,snow --tau 0.4

Everything runs on the embedded model and images, offline, unless told otherwise; a field of SpearConfig is an option.
Each measure prints a table and writes MEASURE.json (every single row) and MEASURE.png to the output folder.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from embedded import IMAGES, MODEL, DatasetOption, ModelOption, with_preset
from rich.console import Console
from torch import nn
from tqdm.auto import tqdm

from spear_hf import METHODS, Spear, SpearConfig, get_spear_model
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
from spear_hf.analysis.grids import Draw, Grid, bars, grid, heat_map, lines, save_panels, shown, summary
from spear_hf.cli import ImageOptions, WeightOptions, about, expanded, numbers, script
from spear_hf.errors import ConfigError

FIRST_1024 = ImageOptions(corruptions="all", limit=1024, shuffle=True, batch_size=256)


@dataclass
class MeasureOptions:
    """Measures."""

    batch_sizes: str = about("With commas; scarce takes the first one only.", "16,256")
    updates: int = about("Adaptation steps before a measurement (amd, cka, probe, alpha) at every batch size.", 64)
    alphas: str = about("The rows of alpha, with commas.", "0,0.25,0.5,0.75,1")
    thresholds: str = about("Scarce removes images with a source entropy below these.", "0,0.1,0.2,0.3,0.4")
    methods: str = about("Names of METHODS to compare SPeaR with in scarce, with commas.", "source,tent,eata")
    before_rsp: bool = about("Measure the input of an RSP instead of its output.", False)
    probe_c: float = about("Inverse strength of the probe's penalty.", 1.0)
    output: Path = about("The folder for figures and rows.", Path("runs/analysis"))
    device: str = about('"cpu", "cuda", or "auto".', "auto")

    @property
    def sizes(self) -> list[int]:
        """The batch sizes."""
        return numbers(self.batch_sizes)


class Study:
    """The model, its images, and the folder of the results."""

    def __init__(
        self,
        config: SpearConfig,
        weights: WeightOptions,
        images: ImageOptions,
        run: MeasureOptions,
        model: str,
        dataset: str,
    ) -> None:
        self.config, self.images, self.run, self.console = config, with_preset(images, dataset), run, Console()
        self.dataset, self.facts = dataset, {"model": model, "dataset": dataset} | asdict(weights)
        self.base = weights.load(model)
        self.device = run.device if run.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        self.base.to(self.device)
        self.title = f"{Path(model).name}, severity {images.severity:g}, {images.limit} images"

    def sets(self, corruptions: str, more: int = 0) -> list[ImageSet]:
        """The images of each domain, always in the same order; `more` images follow them."""
        options = replace(self.images, corruptions=corruptions, limit=self.images.limit + more)
        stream = options.stream(self.dataset, self.base)
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
        """Write every row to NAME.json, with all that a rerun needs."""
        path = self.run.output / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        run = self.facts | asdict(self.images) | asdict(self.run) | {"output": str(self.run.output)}
        found = {"config": self.config.to_dict(), "run": run, "rows": [row._asdict() for row in rows]}
        path.write_text(json.dumps(found, indent=1) + "\n")

    def print(self, found: Grid, title: str, corner: str, digits: int = 2) -> None:
        self.console.print(shown(found, f"{title}; {self.title}", corner, digits))

    def draw(self, name: str, panels: dict[str, Grid], draw: Draw, *, y: str, x: str) -> None:
        path = save_panels(self.run.output / f"{name}.png", panels, draw, y=y, x=x)
        self.console.print(f"saved {path}", highlight=False)


def decimals(text: str) -> list[float]:
    """Numbers with commas."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not allowed; give numbers with commas, such as 0,0.25,1") from error


# --- amd, cka, probe -------------------------------------------------------------------------------------------------


def representations(study: Study, measures: set[str]) -> None:
    """Measure all three in one run: adapt, hold the RSPs fixed, measure."""
    run, drifts, separated = study.run, [], []
    clean, sets = study.sets("clean")[0], study.sets(study.images.corruptions)
    with placed(study.base, study.config) as model:
        reference = source_representations(model, clean)
        looks = adapted_representations(
            model, sets, batch_sizes=run.sizes, updates=run.updates, steered=not run.before_rsp
        )
        count = len(placements(model.boundaries[-1].depth)) + 1 + (model.has_batch_norms and study.config.alpha > 0)
        for adapted in tqdm(looks, total=len(sets) * len(run.sizes) * count, unit="look"):
            drifts += drift(adapted, reference) if measures & {"amd", "cka"} else []
            separated += [separability(adapted, c=run.probe_c, seed=study.images.seed)] if "probe" in measures else []
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
    """A function that puts SPeaR on a copy of the base."""
    return lambda base: Spear(get_spear_model(base, config))


def gate(study: Study) -> None:
    """Compare the hard gate on and off; corruptions are sorted from the least to the most uncertain."""
    run, on, off = study.run, replace(study.config, hard_gate=True), replace(study.config, hard_gate=False)
    sets = study.sets(study.images.corruptions)
    rows = gate_ablation(study.base, sets, spear(on), spear(off), batch_sizes=run.sizes)
    found = list(tqdm(rows, total=len(sets) * len(run.sizes), unit="row"))
    study.keep("gate", found)
    panels = {}
    for size, rows in by_batch_size(sorted(found, key=lambda row: row.entropy)).items():
        columns = ("entropy", "source", "without_gate", "with_gate", "gain", "skipped")
        study.print(summary(rows, "domain", columns, mean=True), f"gate, {size}", "domain")
        panels[size] = summary(rows, "domain", ("without_gate", "with_gate"))
    study.draw("gate", panels, bars, y="error in %", x="from the least uncertain to the most")


FISHER_IMAGES = 2000  # as EATA was published


def scarce(study: Study) -> None:
    """Compare methods while confident images are removed; a mean is over domains with images at every threshold."""
    run, sets = study.run, study.sets(study.images.corruptions)
    names = [name for name in run.methods.split(",") if name]
    if unknown := [name for name in names if name not in METHODS]:
        raise ConfigError(f"methods={unknown} are not known; METHODS has {', '.join(METHODS)}")
    makers: dict[str, Any] = {name: METHODS[name] for name in names}
    if "eata" in makers:  # its Fisher information, from clean images that are not among those measured
        others = study.sets("clean", more=FISHER_IMAGES)[0].images[study.images.limit :]
        makers["eata"] = partial(METHODS["eata"], source_images=others)
    makers["SPeaR"] = spear(study.config)
    size = run.sizes[0]
    thresholds = decimals(run.thresholds)
    rows = scarce_confidence(study.base, sets, makers, thresholds, batch_size=size)
    found = list(tqdm(rows, total=len(sets) * len(makers) * len(thresholds), unit="row"))
    study.keep("scarce", found)
    left = grid([row for row in found if row.method == "SPeaR"], "domain", "threshold", "images")
    study.print(left, "scarce: images left at each threshold", "domain", 0)
    lasting = {row.domain for row in found if row.threshold == max(thresholds)}
    errors = grid([row for row in found if row.domain in lasting], "method", "threshold", "error")
    study.print(errors, f"scarce: error in % over the {len(lasting)} domains that last, batch {size}", "method")
    study.draw("scarce", {f"batch {size}": errors}, lines, y="error in %", x="least source entropy")


def alpha(study: Study) -> None:
    """Measure the error by alpha and batch size, without and with learning."""
    run, sets = study.run, study.sets(study.images.corruptions)
    alphas = decimals(run.alphas)
    rows = mixing_errors(study.base, sets, study.config, alphas=alphas, batch_sizes=run.sizes, updates=run.updates)
    found = list(tqdm(rows, total=len(sets) * len(alphas) * len(run.sizes), unit="cell"))
    study.keep("alpha", found)
    panels = {
        "mixing alone": grid(found, "alpha", "batch_size", "unlearned"),
        f"after {run.updates} updates": grid(found, "alpha", "batch_size", "learned"),
    }
    for title, errors in panels.items():
        study.print(errors, f"alpha, {title}: error in %", "alpha, by batch size")
    study.draw("alpha", panels, heat_map, y="alpha", x="batch size")


ALONE: dict[str, Callable[[Study], None]] = {"gate": gate, "scarce": scarce, "alpha": alpha}
Measure = Enum("Measure", {name: name for name in ("amd", "cka", "probe", *ALONE)})


@expanded(without=("protocol", "batch_size", "num_workers"))
def main(
    measures: Annotated[list[Measure], typer.Argument(help="What to measure; one or several.")],
    config: SpearConfig,
    weights: WeightOptions,
    run: MeasureOptions,
    images: ImageOptions = FIRST_1024,
    model: ModelOption = MODEL,
    dataset: DatasetOption = IMAGES,
) -> None:
    study = Study(config, weights, images, run, model, dataset)
    names = {measure.value for measure in measures}
    if looks := {"amd", "cka", "probe"} & names:
        representations(study, looks)
    for name, command in ALONE.items():
        if name in names:
            command(study)


app = script(main, __doc__)

if __name__ == "__main__":
    app()
