"""README.md of an adapter: a card rendered from its files alone, so that the same files give the same text."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import yaml
from torch import Tensor

from spear_hf.adapters.adapter_config import AdapterConfig
from spear_hf.adapters.card_metrics import CardMetrics, CardRow, read_metrics, write_metrics
from spear_hf.adapters.serialization import WEIGHTS_NAME, read_adapter
from spear_hf.config import SpearConfig
from spear_hf.utils.files import write_atomically

CARD_NAME = "README.md"
_MARK = "<!-- spear-hf writes this card anew"
_LEARNED = (
    "learning_rate",
    "steps",
    "tau",
    "lambda_ent",
    "lambda_div",
    "diversity_batch",
    "lambda_anchor",
    "anchor_growth",
)


def write_card(folder: Path, source: str | None = None, results: CardMetrics | None = None) -> Path:
    """Write README.md (and metrics.json, where there are results) beside an adapter; a card of the user's own is kept.

    Args:
        source: how the snippet names the adapter: a folder, or a Hub id; None gives a placeholder.
        results: None keeps those in the folder, if they are about these very weights.
    """
    if results is not None:
        write_metrics(folder, results, folder / WEIGHTS_NAME)
    elif read_metrics(folder, folder / WEIGHTS_NAME) is None:
        (folder / "metrics.json").unlink(missing_ok=True)  # of an adapter that lay here before
    path = folder / CARD_NAME
    if path.exists() and not is_generated(path):
        return path
    return write_atomically(path, render_card(folder, source))


def is_generated(path: Path) -> bool:
    """Whether a README.md was rendered here and not written by a person."""
    return _MARK in path.read_text(encoding="utf-8", errors="replace")


def render_card(folder: Path, source: str | None = None, subfolder: str | None = None) -> str:
    """The text of README.md: front matter that the Hub reads, and what a person wants to know before using it."""
    config, state = read_adapter(folder)
    results = read_metrics(folder, folder / WEIGHTS_NAME)
    title = _title(results)
    name = source or "path/to/this/folder"
    metadata = card_metadata(config, name, results)
    text = Template(files("spear_hf.adapters").joinpath("card_template.md").read_text(encoding="utf-8"))
    return text.substitute(
        metadata=yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True),
        base=_plain(config.base_name),
        title=title,
        summary=_summary(config, state, results),
        commit=f" at commit `{config.origin.revision}`" if config.origin.revision else "",
        usage=_usage(config, name, subfolder),
        errors=_errors(results),
        boundaries=_boundaries(config, state),
        numbers=f"{sum(value.numel() for value in state.values()):,}",
        size=f"{(folder / WEIGHTS_NAME).stat().st_size:,}",
        configuration=_configuration(config.spear_config),
        limits=_limits(config, results),
        version=config.spear_version,
    )


def render_index(config: AdapterConfig, repo_id: str, subfolders: Sequence[str]) -> str:
    """README.md of a repo that holds several adapters of one base, one in each of these subfolders."""
    metadata = yaml.safe_dump(card_metadata(config, repo_id, None), sort_keys=False, allow_unicode=True)
    rows = "\n".join(f"- [`{_plain(name)}`]({name}/README.md)" for name in subfolders)
    return (
        f"---\n{metadata}---\n\n{_MARK} when an adapter is pushed; delete this line to keep a text of your own -->\n\n"
        f"# SPeaR adapters for {_plain(config.base_name)}\n\n{rows}\n\n```python\n"
        "from spear_hf import AdapterBank, SpearModel\n\n"
        f'model = SpearModel.from_pretrained(base, "{repo_id}", subfolder="{subfolders[0]}")\n'
        f'bank = AdapterBank.from_pretrained(base, "{repo_id}")  # all: picks what serves a stream best\n'
        "```\n"
    )


def card_metadata(config: AdapterConfig, name: str, results: CardMetrics | None) -> dict[str, Any]:
    """The front matter; a base that is no Hub id is left out, since the Hub refuses a card that names one."""
    tags = ["spear", "test-time-adaptation", "robustness", "adapter"]
    data: dict[str, Any] = {"library_name": "spear-hf", "pipeline_tag": "image-classification"}
    if config.origin.hub_id is not None:
        data |= {"base_model": config.origin.hub_id, "base_model_relation": "adapter"}
    data["tags"] = tags + ([config.origin.library] if config.origin.library != "torch" else [])
    if results is None:
        return data
    rows = [("online", row) for row in results.online] + [("frozen", row) for row in results.frozen]
    return data | {
        "metrics": ["error_rate"],
        "model-index": [{"name": name, "results": [_index_row(results.dataset, kind, row) for kind, row in rows]}],
    }


def _index_row(dataset: str, kind: str, row: CardRow) -> dict[str, Any]:
    what = {"online": "while it learned", "frozen": "as saved"}[kind]
    return {
        "task": {"type": "image-classification"},
        "dataset": {"name": f"{dataset}, {row.domain}, {row.n} images", "type": dataset, "config": row.domain},
        "metrics": [
            {"type": "error_rate", "name": f"error in % {what}", "value": round(row.after, 2)},
            {"type": "error_rate", "name": f"error in % of the source ({kind} images)", "value": round(row.before, 2)},
        ],
    }


# --- the sections -------------------------------------------------------------------------------------------------


def _title(results: CardMetrics | None) -> str:
    domains = list(dict.fromkeys(row.domain for row in results.online)) if results else []
    if not domains:
        return "learned online"
    return domains[0] if len(domains) == 1 else f"{len(domains)} corruptions, {results.protocol if results else ''}"


def _summary(config: AdapterConfig, state: Mapping[str, Tensor], results: CardMetrics | None) -> str:
    numbers = sum(value.numel() for value in state.values())
    depths = " and ".join(b.name for b in config.chosen)
    text = (
        f"{numbers:,} numbers, a scale and a shift for each channel at {depths}, that make "
        f"`{_plain(config.base_name)}` ({config.base_class}) answer shifted images better. They were learned online "
        "from unlabeled images"
    )
    seen = sum(row.n for row in results.online) if results else 0
    return text + (f": {seen:,} of {results.dataset}." if results and seen else ".")


def _usage(config: AdapterConfig, source: str, subfolder: str | None) -> str:
    where = f', subfolder="{subfolder}"' if subfolder else ""
    lines = ["from spear_hf import AutoSpearModel, Spear, SpearModel", ""]
    if config.origin.library == "torch":
        lines[0] = "from spear_hf import Spear, SpearModel"
    else:
        lines.append(f'model = AutoSpearModel.from_pretrained("{source}"{where})  # builds the base too')
    lines += [
        f'model = SpearModel.from_pretrained(base, "{source}"{where})  # on a base that you have',
        "logits = model(pixel_values)  # steered, learns nothing",
        "logits = Spear(model).step(pixel_values)  # answers, then goes on learning from this stream",
    ]
    return "\n".join(lines)


def _errors(results: CardMetrics | None) -> str:
    if results is None:
        return ""
    protocol = (
        f"Errors in percent on {results.dataset}; labels were used to count them and for nothing else. Protocol "
        f"{results.protocol}, batches of {results.batch_size}, seed {results.seed}."
    )
    if any(row.mixed is not None for row in results.online):
        protocol += ' "Statistics alone" is the source with mixed batch statistics and no RSPs.'
    parts = ["## Errors before and after", protocol, _table("while it learned", results.online)]
    if results.frozen:
        parts.append(_table("as saved, on images it did not learn from", results.frozen))
    clean = results.of("clean")
    if clean:
        parts.append(f"On clean images the error goes from {clean[0].before:.2f} to {clean[0].after:.2f}.")
    return "\n\n".join(parts) + "\n\n"


def _table(heading: str, rows: Sequence[CardRow]) -> str:
    mixes = any(row.mixed is not None for row in rows)
    columns = ["n", "source", *(["statistics alone"] if mixes else []), "SPeaR", "gain"]
    lines = [f"| {heading} | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for row in rows:
        mixed = [] if not mixes else ["" if row.mixed is None else f"{row.mixed:.2f}"]
        cells = [f"{row.n:,}", f"{row.before:.2f}", *mixed, f"{row.after:.2f}", f"{row.before - row.after:+.2f}"]
        lines.append(f"| {_plain(row.domain)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _boundaries(config: AdapterConfig, state: Mapping[str, Tensor]) -> str:
    chosen = {boundary.key for boundary in config.chosen}
    lines = ["| depth | module | channels | \\|gamma - 1\\| | \\|beta\\| |", "|---:|---|---:|---:|---:|"]
    for b in config.boundaries:
        moved = "| not steered | |"
        if b.key in chosen:
            gamma, beta = (float(v.double().norm()) for v in (state[f"{b.key}.gamma"] - 1, state[f"{b.key}.beta"]))
            moved = f"| {gamma:.4f} | {beta:.4f} |"
        lines.append(f"| {b.depth} | `{_plain(b.module)}` ({b.where}) | {b.channels} {moved}")
    return "\n".join(lines)


def _configuration(config: SpearConfig) -> str:
    chosen = config.boundaries if isinstance(config.boundaries, str) else ", ".join(map(str, config.boundaries))
    values = {"boundaries": chosen, "alpha": config.alpha} | {name: getattr(config, name) for name in _LEARNED}
    return ", ".join(f"{name} {value}" for name, value in values.items()) + "."


def _limits(config: AdapterConfig, results: CardMetrics | None) -> str:
    lines = [
        "- It was learned without labels for one base and one kind of shift; on other images it can do harm. Compare "
        "it with `model.disable_adapter()` on a sample of yours.",
    ]
    if config.spear_config.alpha > 0:
        lines.append(
            f"- alpha = {config.spear_config.alpha:g} mixes the statistics of each batch into the batch norms (where "
            "the base has them), so an answer depends on the batch it comes in; batches of a few images, or of one "
            "class, suffer."
        )
    if results is None:
        lines.append("- No errors were measured for this card.")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text that cannot break out of a table cell or a code span."""
    return text.replace("|", "/").replace("`", "'").replace("<", "(").replace(">", ")")
