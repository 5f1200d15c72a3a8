"""Tables that compare methods (1, 2, 3, GN, NFNet), each with the errors of every corruption, and figure 2."""

from collections.abc import Callable, Mapping

from paper.run import CONSOLE, OURS, PAPER, Run, cell, make_table, paper_label
from spear_hf.evaluation.comparison import Comparison
from spear_hf.evaluation.plots import plot_parameters

RIVALS = ("source", "tent", "eata", "sar", "roid", "deyo", "cmf", "buffer")


def single_shift(labels: tuple[str, ...], batch_sizes: list[int]) -> Callable[[Run], None]:
    """A table of mean errors; then for each batch size every corruption and the costs; and figure 2."""

    def make(run: Run) -> None:
        found = run.compare(run.contenders(labels), run.options.sizes(batch_sizes))
        sizes = found.batch_sizes
        table = make_table(f"{run.table}: {run.setup.title}", "method", *(f"batch {size}" for size in sizes))
        for label in found.labels:
            printed = run.theirs("means", run.key, paper_label(label))
            table.add_row(label, *(cell(found.error(label, size), printed.get(str(size))) for size in sizes))
        run.show(table)
        for size in sizes:
            show_corruptions(run, found, size, single_figures(run, size))
            CONSOLE.print(found.costs(size, f"{run.setup.title}, batch {size}"))
        CONSOLE.print(f"saved {plot_parameters(found, run.folder / 'parameters.png', run.setup.title)}")

    return make


def table1(run: Run) -> None:
    """Table 1, tables C.1 to C.3, figures 2 and F."""
    single_shift((*RIVALS, *OURS), [4, 16, 256])(run)


def table2(run: Run) -> None:
    """Table 2 and its corruptions."""
    single_shift(("source", "sar", "roid", "deyo", *OURS), [4, 16, 256])(run)


def table3(run: Run) -> None:
    """Continual adaptation, without resets; CoTTA's batch size, since the paper states none. We add four rivals."""
    labels = (*RIVALS, "cotta", "rotta", *OURS)
    sizes = run.options.sizes([200 if run.key.startswith("cifar") else 64])
    found = run.compare(run.contenders(labels), sizes, "continual")
    for size in found.batch_sizes:
        show_corruptions(run, found, size, run.theirs("continual", run.key))
        CONSOLE.print(found.costs(size, f"{run.setup.title}, continual, batch {size}"))


def gn(run: Run) -> None:
    """The group-normalised ResNet-50."""
    single_shift(("source", "sar", "roid", "deyo", "buffer", *OURS), [256])(run)


def nfnet(run: Run) -> None:
    """The network without normalisation layers."""
    single_shift(("source", "buffer", *OURS), [256])(run)


def single_figures(run: Run, batch_size: int) -> dict[str, list[float]]:
    """method -> the paper's 15 errors at a batch size; it prints the source's errors for the first batch size only."""
    sizes = run.theirs("single", run.key)
    first, here = next(iter(sizes.values()), {}), sizes.get(str(batch_size), {})
    return {"source": first["source"]} | here if here else {}


def show_corruptions(run: Run, found: Comparison, batch_size: int, theirs: Mapping[str, list[float]]) -> None:
    """A row for each corruption, a column for each method that ran."""
    reports = {label: r for label in found.labels if (r := found.report(label, batch_size)) is not None}
    if not reports:
        return
    printed = {label: theirs.get(paper_label(label)) for label in reports}
    table = make_table(f"{run.setup.title}, batch {batch_size}", "corruption", *reports)
    for place, row in enumerate(next(iter(reports.values())).rows):
        name = row.domain.split("/")[0]
        at = PAPER["corruptions"].index(name)
        figures = {label: None if values is None else values[at] for label, values in printed.items()}
        table.add_row(name, *(cell(r.rows[place].error[label], figures[label]) for label, r in reports.items()))
    table.add_section()
    means = {label: None if values is None else sum(values) / len(values) for label, values in printed.items()}
    table.add_row("mean", *(cell(r.mean_error(label), means[label]) for label, r in reports.items()))
    run.show(table)
