"""How much a bank of saved adapters helps at the start of a stream.

    python benchmarks/bank.py --model examples/fashion_mnist/resnet --bank hub_cards/resnet-*

The table has the mean error of the first batches for each corruption; every batch is predicted before SPeaR learns from
it. SPeaR starts from the identity, from the adapter that the bank chooses by the first batch without labels, or from
the best adapter (the oracle, which needs labels). examples/share.py did not learn from these images.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table

from spear_hf import AdapterBank, Spear, load_base_model, load_processor, load_stream
from spear_hf.data.corruptions import CORRUPTIONS
from spear_hf.evaluation.metrics import count_wrong
from spear_hf.learning.bank import IDENTITY, MARGIN
from spear_hf.utils.files import write_atomically

NAMES = list(CORRUPTIONS)
START = 5120  # examples/share.py learns from at most 4,096 images of this order and tests on the next 1,024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="examples/fashion_mnist/resnet")
    parser.add_argument("--bank", nargs="+", required=True, help="folders or Hub ids of adapters")
    parser.add_argument("--data", default="examples/fashion_mnist/test.parquet")
    parser.add_argument("--preset", default="cifar")
    parser.add_argument("--corruptions", nargs="+", default=NAMES)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--margin", type=float, default=MARGIN)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="runs/bank.json")
    run = parser.parse_args()

    base = load_base_model(run.model)
    processor = load_processor(base)
    bank = AdapterBank.from_pretrained(base, *run.bank)
    images = Dataset.from_parquet(run.data)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(run.seed))
    ids = order[START:][: run.batches * run.batch_size]
    rows = []
    for corruption in run.corruptions:
        stream = load_stream(
            images.select(ids.tolist()),
            corruptions=corruption,
            shuffle=True,
            batch_size=run.batch_size,
            seed=run.seed,
            processor=processor,
            preset=run.preset,
        )
        batches = list(stream)
        errors = {name: online_error(bank, name, batches) for name in bank.names}
        report = bank.choose([batches[0]["pixel_values"]], margin=run.margin)
        information = {score.adapter: round(score.information, 4) for score in report.scores}
        rows.append({"corruption": corruption, "chosen": report.chosen, "errors": errors, "information": information})
        print(json.dumps(rows[-1]), flush=True)
    Console().print(table(rows, run))
    write_atomically(run.output, json.dumps({"settings": vars(run), "rows": rows}, indent=2) + "\n")


def online_error(bank: AdapterBank, start: str, batches: list[dict[str, Any]]) -> float:
    """The error in percent over these batches if SPeaR starts from this adapter."""
    bank.start_from(start)
    tta = Spear(bank.model)
    wrong = sum(count_wrong(tta.step(batch["pixel_values"]), batch["labels"]) for batch in batches)
    return round(100 * wrong / sum(len(batch["labels"]) for batch in batches), 3)


def table(rows: list[dict[str, Any]], run: argparse.Namespace) -> Table:
    """A line for each corruption: identity, the choice of the bank, the choice of the oracle."""
    shown = Table(
        title=f"{Path(run.model).name}, first {run.batches} batches of {run.batch_size}, bank of {len(run.bank)}",
        caption="error in %, lower is better; gain in points over the identity",
    )
    for column in ("corruption", "identity", "bank", "oracle", "gain", "chosen", "best"):
        shown.add_column(column, justify="left" if column in ("corruption", "chosen", "best") else "right")
    cells = [(row["errors"][IDENTITY], row["errors"][row["chosen"]], min(row["errors"].values())) for row in rows]
    for row, (identity, chosen, oracle) in zip(rows, cells, strict=True):
        best = min(row["errors"], key=row["errors"].get)
        numbers = (f"{identity:.2f}", f"{chosen:.2f}", f"{oracle:.2f}", f"{identity - chosen:+.2f}")
        shown.add_row(row["corruption"], *numbers, row["chosen"], best)
    identity, chosen, oracle = (sum(column) / len(rows) for column in zip(*cells, strict=True))
    shown.add_section()
    shown.add_row("mean", f"{identity:.2f}", f"{chosen:.2f}", f"{oracle:.2f}", f"{identity - chosen:+.2f}", "", "")
    return shown


if __name__ == "__main__":
    main()
