"""One column of a table: a setup with the options of the command line, and how its numbers are printed."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from paper.cells import add_cell
from paper.setups import BENCHMARKS, Setup, open_setup
from spear_hf import METHODS, SpearError
from spear_hf.cli import about, numbers
from spear_hf.errors import ConfigError
from spear_hf.evaluation.compare import compare
from spear_hf.evaluation.comparison import Comparison
from spear_hf.evaluation.method_spec import VARIANTS, MethodSpec, chosen_settings, method_specs
from spear_hf.evaluation.report import Report
from spear_hf.learning.method import TTAMethod

PAPER = json.loads((Path(__file__).parent / "numbers.json").read_text())
OURS = ("spear", "spear_paper")
SOURCE_IMAGES = 2000  # for methods that need some, as EATA was published
CONSOLE = Console(highlight=False, width=None if sys.stdout.isatty() else 200)  # a file has no width of its own


@dataclass
class TableOptions:
    """Tables."""

    on: Literal["paper", "shared", "embedded"] | None = about(
        "Which models and images; default: embedded, or shared if --data is given.", None
    )
    data: Path | None = about("The folder of real images and weights for --on shared.", None)
    set: list[str] = field(
        default_factory=list,
        metadata={"help": "KEY.FIELD=VALUE: another model, images, checkpoint or clean; several times."},
    )
    only: str | None = about("Some of the table's columns, with commas.", None)
    methods: str | None = about("Labels with commas; replaces the table's own.", None)
    settings: Path | None = about("A JSON file of hyper-parameters by label.", None)
    variants_of: str = about(
        "The label that tables of SPeaR's variants change: spear_paper, spear, or another.", "spear_paper"
    )
    batch_sizes: str | None = about("With commas; replaces the table's own.", None)
    limit: int = about("Images of each corruption; 0 takes all.", 512)
    clean_images: int = about("Clean images for measurements between steps.", 512)
    seed: int = about("Seed of the image order and of the corruptions.", 0)
    cache: Path = about("The folder that keeps corrupted images.", Path("runs/cache"))
    output: Path = about("The folder of the results.", Path("runs/paper"))
    device: str = about('"cpu", "cuda" or "auto".', "auto")

    def __post_init__(self) -> None:
        if self.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def world(self) -> str:
        """The world of `--on`, or the default one."""
        return self.on or ("shared" if self.data else "embedded")

    def sizes(self, default: list[int]) -> list[int]:
        """The batch sizes of the command line, or the default ones."""
        return numbers(self.batch_sizes) if self.batch_sizes else default


class Run:
    """A setup with its model and images loaded.

    Args:
        key: the paper's column.
        setup: the model and images to run for it.
        options: of the command line.
        table: the name of the table.

    Raises:
        SpearError: the model or the images cannot be loaded.
    """

    def __init__(self, key: str, setup: Setup, options: TableOptions, table: str) -> None:
        self.key, self.setup, self.options, self.table = key, setup, options, table
        ours: dict[str, dict[str, Any]] = {"spear": {}} | VARIANTS
        self.settings = ours | chosen_settings(BENCHMARKS[key], options.settings)
        self.opened = open_setup(
            setup, limit=options.limit or None, seed=options.seed, cache=options.cache, device=options.device
        )
        self.world_folder = options.output / options.world
        self.folder = self.world_folder / table / f"{key}-{options.limit or 'all'}"

    def contenders(self, labels: tuple[str, ...]) -> dict[str, MethodSpec]:
        """The methods of `labels`, or of --methods, that exist."""
        wanted = tuple(self.options.methods.split(",")) if self.options.methods else labels
        absent = [name for name in wanted if name not in (*METHODS, *self.settings)]
        if absent:
            CONSOLE.print(f"not in METHODS, so not run: {', '.join(absent)}")
        settings = {label: self._of_this_network(label, values) for label, values in self.settings.items()}
        return method_specs([name for name in wanted if name not in absent], settings)

    def variants(self, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, MethodSpec]:
        """label -> SPeaR with some hyper-parameters changed."""
        return {label: MethodSpec("spear", self.spear() | dict(values)) for label, values in changes.items()}

    def spear(self) -> dict[str, Any]:
        """The hyper-parameters on this network that tables of variants change; ConfigError if they are not SPeaR's."""
        label = self.options.variants_of
        found = self._of_this_network(label, self.settings.get(label, {"method": label}))
        if found.pop("method", label) != "spear":
            raise ConfigError(f"--variants-of {label} is not SPeaR; give spear_paper, spear, or a label of --settings")
        return found

    def _of_this_network(self, label: str, values: Mapping[str, Any]) -> dict[str, Any]:
        is_spear = values.get("method", label) == "spear"
        return (self.setup.config if is_spear else {}) | dict(values)

    def compare(
        self,
        contenders: dict[str, MethodSpec],
        batch_sizes: list[int],
        protocol: str = "single",
        observe: Callable[[TTAMethod], Any] | None = None,
    ) -> Comparison:
        """The comparison of these methods on this setup, also saved; finished cells are not run again.

        Each finished cell is a line of cells.csv, beside the folders of the tables.
        """
        key = {"table": self.table, "column": self.key, "protocol": protocol, "images": self.options.limit or "all"}

        def note(label: str, batch_size: int, report: Report) -> None:
            add_cell(self.world_folder / "cells.csv", label, report, batch_size=batch_size, **key)

        found = compare(
            self.opened.base,
            lambda size: self.opened.stream(size, protocol),
            contenders,
            batch_sizes=batch_sizes,
            folder=self.folder / "cells",
            resources=self._resources(contenders),
            observe=observe,
            on_cell=note,
            seed=self.options.seed,
            device=self.options.device,
            provenance={"model": self.setup.model, "images": self.setup.images},
        )
        found.to_json(self.folder / "comparison.json")
        for line in found.refusal_lines():
            CONSOLE.print(line, markup=False)
        return found

    def _resources(self, contenders: Mapping[str, MethodSpec]) -> dict[str, Any]:
        """Arguments of methods besides hyper-parameters: the normalisation, and clean images if a method needs them."""
        found: dict[str, Any] = {"mean": self.opened.processor.mean, "std": self.opened.processor.std}
        if any(contender.needs_source for contender in contenders.values()):
            count = min(SOURCE_IMAGES, self.options.limit or SOURCE_IMAGES)
            try:
                found["source_images"] = self.opened.clean_images(count)
            except SpearError as error:
                CONSOLE.print(f"no clean images ({error}); --set {self.key}.clean=FOLDER gives some", markup=False)
        return found

    def clean_batches(self, batch_size: int) -> list[dict[str, Any]]:
        """Clean images for measurements between steps."""
        batches = self.opened.stream(batch_size, clean=True, images=self.options.clean_images)
        return [batch | {"pixel_values": batch["pixel_values"].to(self.options.device)} for batch in batches]

    def batches_of_a_domain(self, batch_size: int) -> int:
        """The number of batches of one corruption."""
        return -(-self.opened.stream(batch_size).schedule.segments[0].length // batch_size)

    # --- printing ----------------------------------------------------------------------------------------------------

    def theirs(self, *place: str) -> Any:
        """The paper's numbers at a place in numbers.json; empty if they are not comparable with ours."""
        found: Any = PAPER
        for name in place:
            found = found.get(name, {})
        return found if self.setup.beside else {}

    def show(self, table: Table) -> None:
        """Print a table with its title, and a line that says whether the paper's numbers are comparable with ours."""
        title, table.title = table.title, None
        CONSOLE.print(f"\n[bold]{title}[/bold]", soft_wrap=True)
        CONSOLE.print(table)
        limit = self.options.limit
        subset = f"{limit} images of each corruption" if limit else "all images"
        if self.setup.beside:
            notes = ["the paper's figures in brackets", subset, *filter(None, [self.setup.differs])]
        else:
            notes = [subset, f"not comparable with the paper: {self.setup.differs}"]
        CONSOLE.print("; ".join(notes), soft_wrap=True)


def make_table(title: str, *columns: str) -> Table:
    """An empty table; the first column holds words, the others hold numbers."""
    table = Table(title=title)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    return table


def cell(ours: float, theirs: float | None = None) -> str:
    """ "24.70 (24.31)": ours, and the paper's in brackets where there is one."""
    own = "-" if ours != ours else f"{ours:.2f}"
    return own if theirs is None else f"{own} ({theirs:.2f})"


def paper_label(label: str) -> str:
    """The paper's name of this method."""
    return "spear" if label in OURS else label
