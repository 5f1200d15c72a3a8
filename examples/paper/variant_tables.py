"""Tables of SPeaR's variants: the ablation, alpha, groups of blocks, the gate, and the error on clean images."""

from collections.abc import Mapping
from typing import Any

from paper.probes import CleanProbe, clean_error
from paper.run import CONSOLE, PAPER, Run, cell, make_table
from spear_hf.evaluation.comparison import Comparison
from spear_hf.evaluation.method_spec import MethodSpec
from spear_hf.evaluation.metrics import mean

WEIGHTS = {"entropy": "lambda_ent", "diversity": "lambda_div", "anchor": "lambda_anchor"}
NO_NUMBERS = "the paper shows this in a figure without numbers"


def table4(run: Run) -> None:
    """The ablation with RSPs at every boundary: errors on the stream, and on clean images after each corruption.

    Rows without alpha keep the source's statistics. The paper does not state its batch size.
    """
    rows = {" + ".join(part for part in ("alpha", *WEIGHTS) if row[part]): row for row in PAPER["ablation"]}
    size = run.options.sizes([16])[0]
    clean, every = run.clean_batches(size), run.batches_of_a_domain(size)
    contenders = run.variants({label: _ablated(row) for label, row in rows.items()})
    found = run.compare(contenders, [size], observe=lambda method: CleanProbe(method, clean, every))
    table = make_table(f"table4: {run.setup.title}, batch {size}", "objective", "corrupted", "clean, after them")
    for label in found.labels:
        theirs = rows[label].get(run.key, {}) if run.setup.beside else {}
        after = mean([look["error"] for look in _looks(found, label, size)])
        corrupted = cell(found.error(label, size), theirs.get("corrupted"))
        table.add_row(label, corrupted, cell(after, theirs.get("clean")))
    run.show(table)
    CONSOLE.print(f"error of the source on the same clean images: {clean_error(run.opened.base, clean):.2f}")


def _ablated(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of SpearConfig for one row of the ablation."""
    without = {weight: 0.0 for part, weight in WEIGHTS.items() if not row[part]}
    return {"boundaries": "all"} | without | ({} if row["alpha"] else {"alpha": 0.0})


def alpha(run: Run) -> None:
    """alpha against the batch size, with the same number of updates at each."""
    sizes = run.options.sizes([4, 16, 64, 256])
    updates = run.batches_of_a_domain(max(sizes))
    contenders = {
        f"alpha {value:g}": MethodSpec("limited_spear", {"updates": updates, "config": run.spear() | {"alpha": value}})
        for value in (0.0, 0.25, 0.5, 0.75, 1.0)
    }
    found = run.compare(contenders, sizes)
    run.show(found.errors(f"alpha: {run.setup.title}, {updates} update(s) at every batch size"))
    CONSOLE.print(f"{NO_NUMBERS}; it says that 0.5 is lowest at every batch size", soft_wrap=True)


def grouping(run: Run) -> None:
    """Transformer blocks in 2 to 12 groups, RSPs at the first 1, 2, ... boundaries of each."""
    changes = {
        f"{groups} groups, boundaries 0 to {last}": {"num_groups": groups, "boundaries": list(range(last + 1))}
        for groups in (2, 3, 4, 6, 12)
        for last in range(groups + 1)
    }
    found = run.compare(run.variants(changes), run.options.sizes([16, 256]))
    run.show(found.errors(f"grouping: {run.setup.title}"))
    CONSOLE.print(NO_NUMBERS)


def gate(run: Run) -> None:
    """With and without the hard gate, corruption by corruption."""
    variants = run.variants({"gate": {"hard_gate": True}, "no gate": {"hard_gate": False}})
    found = run.compare(variants, run.options.sizes([16]))
    for size in found.batch_sizes:
        run.show(found.domains(size, f"gate: {run.setup.title}"))
    CONSOLE.print(NO_NUMBERS)


def preservation(run: Run) -> None:
    """Accuracy on clean images along the continual stream, with and without the anchor."""
    size = run.options.sizes([64])[0]
    clean, every = run.clean_batches(size), max(1, run.batches_of_a_domain(size) // 4)
    contenders = run.variants({"spear": {}, "spear, no anchor": {"lambda_anchor": 0.0}})
    found = run.compare(contenders, [size], "continual", lambda method: CleanProbe(method, clean, every))
    theirs = run.theirs("clean_accuracy", run.key)
    table = make_table(f"preservation: {run.setup.title}, batch {size}", "clean accuracy", *found.labels)
    seen = {label: _looks(found, label, size) for label in found.labels}
    for domain in dict.fromkeys(look["domain"] for looks in seen.values() for look in looks):
        during = [[100 - look["error"] for look in looks if look["domain"] == domain] for looks in seen.values()]
        table.add_row(f"during {domain}", *(cell(mean(values)) for values in during))
    table.add_section()
    means = {label: mean([100 - look["error"] for look in looks]) for label, looks in seen.items()}
    table.add_row("mean", *(cell(value, theirs.get(label)) for label, value in means.items()))
    run.show(table)
    CONSOLE.print(f"the source: {cell(100 - clean_error(run.opened.base, clean), theirs.get('source'))}")


def _looks(found: Comparison, label: str, batch_size: int) -> list[dict[str, Any]]:
    """The measurements of a CleanProbe in one cell."""
    report = found.report(label, batch_size)
    return [] if report is None else report.provenance["observed"]["clean"]
