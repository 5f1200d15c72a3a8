"""Upload an adapter, its card and its metrics to the Hub in one commit."""

import tempfile
from dataclasses import replace
from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError

from spear_hf.adapters.adapter_config import CONFIG_NAME, AdapterConfig, read_config
from spear_hf.adapters.arithmetic import deviations
from spear_hf.adapters.card import CARD_NAME, MAX_CARD_BYTES, is_generated, render_card, render_index
from spear_hf.adapters.card_metrics import METRICS_NAME, metrics_bytes, read_metrics
from spear_hf.adapters.containment import contained
from spear_hf.adapters.download import Token, cached_commit, inside_repo, subfolders_of
from spear_hf.adapters.serialization import WEIGHTS_NAME, read_adapter
from spear_hf.backbones.origin import Origin
from spear_hf.errors import AdapterSaveError
from spear_hf.utils.files import write_atomically


def push(
    folder: str | Path,
    repo_id: str,
    *,
    subfolder: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    token: Token = None,
    commit_message: str | None = None,
) -> CommitInfo:
    """The commit that uploaded the adapter in `folder` with its card and metrics; without changes, none is made.

    No path of this machine is uploaded: neither that of the base nor one in the metrics.

    Args:
        folder: holds the adapter.
        repo_id: "name" or "owner/name"; made if it does not exist.
        subfolder: where in the repo, for several adapters of one base.
        private: whether a new repo is private.
        revision: a branch, made if it does not exist.
        create_pr: open a pull request instead of committing; works for repos of other owners too.
        token: None takes the one that the user has stored.
        commit_message: None makes one.

    >>> from spear_hf.adapters.upload import push
    >>> commit = push("adapters/fog", "me/resnet50-fog", private=True)  # doctest: +SKIP

    Raises:
        AdapterFormatError, AdapterLoadError: a folder that cannot be loaded as an adapter.
        AdapterSaveError: an adapter that is the identity, or a README.md above 1 MB.
    """
    folder, inside = Path(folder), inside_repo(subfolder)
    config, state = read_adapter(folder)
    if deviations(state) == (0, 0):
        raise AdapterSaveError(f"{folder} holds the identity, which changes no prediction; adapt it before you push it")
    api = HfApi(token=token)
    if not create_pr:
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
    with tempfile.TemporaryDirectory() as copy:
        shown = _public_copy(folder, Path(copy), config)
        card = shown / CARD_NAME
        if not card.exists() or is_generated(card):
            write_atomically(card, render_card(shown, repo_id, subfolder))
        files = {f"{inside}{path.name}": path.read_bytes() for path in sorted(shown.iterdir())}
        if subfolder and _may_replace_card(repo_id, None if create_pr else revision, token):
            names = sorted({*subfolders_of(repo_id, None if create_pr else revision, token), inside.rstrip("/")})
            files[CARD_NAME] = render_index(read_config(shown), repo_id, names).encode()
    return api.create_commit(
        repo_id,
        [CommitOperationAdd(path, content) for path, content in files.items()],
        commit_message=commit_message or f"Upload SPeaR adapter{f' {subfolder}' if subfolder else ''}",
        revision=revision,
        create_pr=create_pr,
    )


def _public_copy(folder: Path, copy: Path, config: AdapterConfig) -> Path:
    """`copy`, with the files of the adapter in `folder`, but without a path of this machine."""
    weights = contained(folder, WEIGHTS_NAME).read_bytes()
    write_atomically(copy / WEIGHTS_NAME, weights)
    if config.origin.is_private_path:
        config = replace(config, origin=replace(config.origin, name=None, revision=None))
    write_atomically(copy / CONFIG_NAME, config.to_json())
    if (results := read_metrics(folder, weights)) is not None:
        write_atomically(copy / METRICS_NAME, metrics_bytes(results, weights))
    if (card := contained(folder, CARD_NAME)).is_file():
        if card.stat().st_size > MAX_CARD_BYTES:
            raise AdapterSaveError(f"{card} has more than {MAX_CARD_BYTES:,} bytes; a card is a page of text")
        write_atomically(copy / CARD_NAME, card.read_bytes())
    return copy


def pinned(origin: Origin) -> Origin:
    """The origin with the commit that is in this machine's cache, if its name is a Hub id.

    >>> from spear_hf.adapters.upload import pinned
    >>> from spear_hf.backbones.origin import Origin
    >>> pinned(Origin("timm", "resnet18"))
    Origin(library='timm', name='resnet18', revision=None)
    """
    if origin.hub_id is None:
        return origin
    return replace(origin, revision=cached_commit(origin.hub_id, origin.revision) or origin.revision)


def _may_replace_card(repo_id: str, revision: str | None, token: Token) -> bool:
    """Whether the card at the root of a repo is missing or was rendered by this package, so it may be replaced."""
    try:
        return is_generated(Path(hf_hub_download(repo_id, CARD_NAME, revision=revision, token=token)))
    except EntryNotFoundError:
        return True
