"""README.md of an adapter: a model card made from the adapter's files alone, so equal files give equal text."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from torch import Tensor

from spear_hf.adapters.adapter_config import AdapterConfig
from spear_hf.adapters.card_metrics import METRICS_NAME, CardMetrics, CardRow, metrics_bytes, read_metrics
from spear_hf.adapters.containment import contained
from spear_hf.adapters.serialization import (
    WEIGHTS_NAME,
    read_adapter,
    refuse_model_folder,
    save_adapter,
    weights_bytes,
)
from spear_hf.config import SpearConfig
from spear_hf.errors import AdapterFormatError
from spear_hf.utils.folders import settle
from spear_hf.utils.validation import first_of

CARD_NAME = "README.md"
MAX_CARD_BYTES = 1_000_000
_MARK = "<!-- spear-hf writes this card anew"  # removed by people who want to keep a text of their own
_INDEX = """---
{{ card_data }}
---

{{ mark }} when an adapter is pushed; delete this line to keep a text of your own -->

# SPeaR adapters for {{ base }}

{{ rows }}

```python
from spear_hf import AdapterBank, SpearModel

model = SpearModel.from_pretrained(base, "{{ repo_id }}", subfolder="{{ first }}")
bank = AdapterBank.from_pretrained(base, "{{ repo_id }}")  # all: picks what serves a stream best
```
"""
_LEARNED = (
    "learning_rate",
    "steps",
    "tau",
    "lambda_ent",
    "lambda_div",
    "memory_images",
    "likelihood_ratio",
    "evidence_images",
    "lambda_anchor",
    "anchor_growth",
)


def save_with_card(
    config: AdapterConfig,
    state: Mapping[str, Tensor],
    folder: str | Path,
    source: str | None = None,
    results: CardMetrics | None = None,
) -> Path:
    """The folder, after an adapter was written into it with README.md and, if there are results, metrics.json.

    All files are written, or none. A README.md that a person wrote is kept.

    Args:
        config, state, folder: as for `save_adapter`.
        source: how the code in the card names the adapter: a folder, or a Hub id; None gives a placeholder.
        results: None keeps the metrics.json in the folder if it is about these weights, and deletes it otherwise.

    >>> import tempfile, timm
    >>> from spear_hf import get_spear_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = get_spear_model(timm.create_model("test_resnet")).save_pretrained(folder)
    ...     sorted(path.name for path in saved.iterdir())
    ['README.md', 'adapter_config.json', 'adapter_model.safetensors']

    Raises:
        AdapterSaveError, OutputError: as for `save_adapter`; what was there is kept whole.
    """
    folder, weights = Path(folder), weights_bytes(config, state)
    refuse_model_folder(folder)
    settle(folder)
    known = results or _known_metrics(folder, weights)
    files: dict[str, bytes | None] = {METRICS_NAME: None if known is None else metrics_bytes(known, weights)}
    if not _is_kept(folder):
        files[CARD_NAME] = _card_text(config, state, known, len(weights), source).encode()
    return save_adapter(config, state, folder, files)


def write_card(folder: Path, source: str | None = None, results: CardMetrics | None = None) -> Path:
    """The path of README.md, written beside an adapter, with metrics.json if there are results.

    Args:
        folder: holds an adapter.
        source, results: as for `save_with_card`.

    >>> import tempfile, timm
    >>> from spear_hf import get_spear_model
    >>> from spear_hf.adapters.card import write_card
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = get_spear_model(timm.create_model("test_resnet")).save_pretrained(folder)
    ...     write_card(saved, source="me/resnet-fog").name
    'README.md'
    """
    return save_with_card(*read_adapter(folder), folder, source, results) / CARD_NAME


def _known_metrics(folder: Path, weights: bytes) -> CardMetrics | None:
    try:
        return read_metrics(folder, weights)
    except AdapterFormatError:  # a damaged file is about no weights
        return None


def _is_kept(folder: Path) -> bool:
    """Whether the folder holds a README.md that a person wrote."""
    path = contained(folder, CARD_NAME)
    return path.exists() and not is_generated(path)


def is_generated(path: Path) -> bool:
    """Whether a README.md was rendered by this package, and not written by a person.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from spear_hf.adapters.card import is_generated
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "README.md")
    ...     _ = path.write_text("# My adapter")
    ...     is_generated(path)
    False
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _MARK.encode() in file.read(MAX_CARD_BYTES)


def render_card(folder: Path, source: str | None = None, subfolder: str | None = None) -> str:
    """The text of README.md: front matter for the Hub, then what a person should know before using the adapter.

    Args:
        folder: holds an adapter, and metrics.json if its errors were measured.
        source: how the code in the card names the adapter.
        subfolder: where the adapter is in the repo `source`.

    >>> import tempfile, timm
    >>> from spear_hf import get_spear_model
    >>> from spear_hf.adapters.card import render_card
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = get_spear_model(timm.create_model("test_resnet")).save_pretrained(folder)
    ...     "library_name: spear-hf" in render_card(saved, "me/resnet-fog")
    True
    """
    config, state = read_adapter(folder)
    weights = (folder / WEIGHTS_NAME).read_bytes()
    return _card_text(config, state, read_metrics(folder, weights), len(weights), source, subfolder)


def _card_text(
    config: AdapterConfig,
    state: Mapping[str, Tensor],
    results: CardMetrics | None,
    size: int,
    source: str | None,
    subfolder: str | None = None,
) -> str:
    """As `render_card`, from an adapter that need not be on disk; `size` is that of its tensor file in bytes."""
    name = source or "path/to/this/folder"
    card = ModelCard.from_template(
        _card_data(config, name, results),
        template_str=files("spear_hf.adapters").joinpath("card_template.md").read_text(encoding="utf-8"),
        base=_code(config.base_name),
        title=_title(results),
        summary=_summary(config, state, results),
        commit=f" at commit `{_code(config.origin.revision)}`" if config.origin.revision else "",
        usage=_usage(config, name, subfolder),
        errors=_errors(results),
        boundaries=_boundaries(config, state),
        numbers=f"{sum(value.numel() for value in state.values()):,}",
        size=f"{size:,}",
        configuration=_configuration(config.spear_config),
        limits=_limits(config, results),
        version=_text(config.spear_version),
    )
    return f"{card}\n"


def render_index(config: AdapterConfig, repo_id: str, subfolders: Sequence[str]) -> str:
    """The text of README.md of a repo that holds several adapters of one base, each in one of these subfolders.

    >>> from spear_hf.adapters.adapter_config import AdapterConfig
    >>> from spear_hf.adapters.card import render_index
    >>> from spear_hf.backbones.fingerprint import Fingerprint
    >>> from spear_hf.config import SpearConfig
    >>> config = AdapterConfig(SpearConfig(), (), Fingerprint(0, "", ()))
    >>> "- [`fog`](fog/README.md)" in render_index(config, "me/resnet-adapters", ["fog", "snow"])
    True
    """
    card = ModelCard.from_template(
        _card_data(config, repo_id, None),
        template_str=_INDEX,
        mark=_MARK,
        base=_code(config.base_name),
        rows="\n".join(f"- [`{_code(name)}`]({quote(name)}/README.md)" for name in subfolders),
        repo_id=repo_id,
        first=subfolders[0],
    )
    return f"{card}\n"


def _card_data(config: AdapterConfig, name: str, results: CardMetrics | None) -> ModelCardData:
    """The front matter; a base that is not a Hub id is left out, because the Hub refuses a card that names one."""
    tags = ["spear", "test-time-adaptation", "robustness", "adapter"]
    base = config.origin.hub_id
    return ModelCardData(
        library_name="spear-hf",
        pipeline_tag="image-classification",
        base_model=base,
        base_model_relation=None if base is None else "adapter",
        tags=tags + ([config.origin.library] if config.origin.library != "torch" else []),
        metrics=None if results is None else ["error_rate"],
        model_name=None if results is None else name,
        eval_results=None if results is None else _eval_results(results),
    )


def _eval_results(results: CardMetrics) -> list[EvalResult]:
    """The model-index: for each domain, the error with SPeaR and that of the source on the same images."""
    online = [result for row in results.online for result in _row_results(results.dataset, "online", row)]
    return online + [result for row in results.frozen for result in _row_results(results.dataset, "frozen", row)]


def _row_results(dataset: str, split: Literal["online", "frozen"], row: CardRow) -> list[EvalResult]:
    # the split keeps apart what was measured on different images of one domain: the library joins entries that have
    # the same dataset, config and split
    what = {"online": "while it learned", "frozen": "as saved"}[split]
    named = {
        f"error in % {what}": row.after,
        f"error in % of the source ({split} images)": row.before,
    }
    return [
        EvalResult(
            task_type="image-classification",
            dataset_type=dataset,
            dataset_name=f"{dataset}, {row.domain}, {row.n} images",
            dataset_config=row.domain,
            dataset_split=split,
            metric_type="error_rate",
            metric_name=name,
            metric_value=round(error, 2),
        )
        for name, error in named.items()
    ]


# --- the sections -------------------------------------------------------------------------------------------------


def _title(results: CardMetrics | None) -> str:
    domains = list(dict.fromkeys(row.domain for row in results.online)) if results else []
    if not domains:
        return "learned online"
    return (
        _text(domains[0])
        if len(domains) == 1
        else f"{len(domains)} corruptions, {_text(results.protocol) if results else ''}"
    )


def _summary(config: AdapterConfig, state: Mapping[str, Tensor], results: CardMetrics | None) -> str:
    numbers = sum(value.numel() for value in state.values())
    depths = " and ".join(_text(b.name) for b in config.chosen)
    text = (
        f"{numbers:,} numbers, a scale and a shift for each channel at {depths}, that make "
        f"`{_code(config.base_name)}` ({_text(config.base_class)}) answer shifted images better. They were learned "
        "online from unlabeled images"
    )
    seen = sum(row.n for row in results.online) if results else 0
    text += f": {seen:,} of {_text(results.dataset)}." if results and seen else "."
    return text + _head(config)


def _head(config: AdapterConfig) -> str:
    """Where the logits come from, where the base is no classifier by itself."""
    head, text = config.head, ""
    if head.labels:
        text += f" The classes are the labels {_text(first_of(head.labels, 5))}"
        text += f", in the prompts {_text(first_of([repr(t) for t in head.templates], 3))}."
    if head.path or head.function:
        where = head.function or " > ".join(map(str, head.path))
        text += f" The logits are at `{_code(where)}` in what the base returns."
    return text


def _usage(config: AdapterConfig, source: str, subfolder: str | None) -> str:
    where = f", subfolder={_literal(subfolder)}" if subfolder else ""
    further = ", logits=..." if config.head.function else ", processor=processor" if config.head.labels else ""
    lines = ["from spear_hf import AutoSpearModel, Spear, SpearModel", ""]
    if config.origin.library == "torch" or config.head.function:
        lines[0] = "from spear_hf import Spear, SpearModel"
    else:
        lines.append(f"model = AutoSpearModel.from_pretrained({_literal(source)}{where})  # builds the base too")
    lines += [
        f"model = SpearModel.from_pretrained(base, {_literal(source)}{where}{further})  # on a base that you have",
        "logits = model(pixel_values)  # steered, learns nothing",
        "logits = Spear(model).step(pixel_values)  # answers, then goes on learning from this stream",
    ]
    return "\n".join(lines)


def _errors(results: CardMetrics | None) -> str:
    if results is None:
        return ""
    protocol = (
        f"Errors in percent on {_text(results.dataset)}; labels were used to count them and for nothing else. Protocol "
        f"{_text(results.protocol)}, batches of {_text(str(results.batch_size))}, seed {_text(str(results.seed))}."
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
        lines.append(f"| {_text(row.domain)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _boundaries(config: AdapterConfig, state: Mapping[str, Tensor]) -> str:
    chosen = {boundary.key for boundary in config.chosen}
    lines = ["| depth | module | channels | \\|gamma - 1\\| | \\|beta\\| |", "|---:|---|---:|---:|---:|"]
    for b in config.boundaries:
        moved = "| not steered | |"
        if b.key in chosen:
            gamma, beta = (float(v.double().norm()) for v in (state[f"{b.key}.gamma"] - 1, state[f"{b.key}.beta"]))
            moved = f"| {gamma:.4f} | {beta:.4f} |"
        lines.append(f"| {b.depth} | `{_code(b.module)}` ({b.where}) | {b.channels} {moved}")
    return "\n".join(lines)


def _configuration(config: SpearConfig) -> str:
    chosen = config.boundaries if isinstance(config.boundaries, str) else ", ".join(map(str, config.boundaries))
    values = {"boundaries": chosen, "alpha": config.alpha} | {name: getattr(config, name) for name in _LEARNED}
    text = ", ".join(f"{name} {value}" for name, value in values.items()) + "."
    own, default = config.to_dict(), SpearConfig().to_dict()
    apart = [f"{name} {chosen if name == 'boundaries' else own[name]}" for name in own if own[name] != default[name]]
    return f"{text}\n\nOther than the defaults: {', '.join(apart)}." if apart else text


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


def _literal(text: str) -> str:
    """The text as a string of Python in a code block."""
    return json.dumps(text.replace("`", "'"))


_PLAIN = str.maketrans("|`<>[]$", "/'()()＄")


def _code(text: str) -> str:
    """The text, changed so that it cannot break out of a code span, a code block or a table cell."""
    return " ".join(text.translate(_PLAIN).split())


def _text(text: str) -> str:
    """The text for Markdown, shown as it is: characters that make markup, HTML or a formula become entities."""
    return re.sub(r"[&<>\[\]|`$*\\!#~]", lambda found: f"&#{ord(found[0])};", " ".join(str(text).split()))
