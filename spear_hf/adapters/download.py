"""Adapters from the Hub, checked before they are believed.

Sizes are checked before a download, both files are of one commit, and their content has the hash under which the server
and the cache keep them. Errors of huggingface_hub are passed on.
"""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from huggingface_hub import (
    HfApi,
    HfFileMetadata,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from spear_hf.adapters.adapter_config import CONFIG_NAME, MAX_CONFIG_BYTES
from spear_hf.adapters.card import CARD_NAME
from spear_hf.adapters.card_metrics import METRICS_NAME
from spear_hf.adapters.serialization import MAX_WEIGHTS_BYTES, WEIGHTS_NAME, read_adapter
from spear_hf.backbones.origin import is_hub_id
from spear_hf.errors import AdapterFormatError, AdapterSaveError
from spear_hf.utils.files import write_atomically

Token = str | bool | None
_LIMITS = {CONFIG_NAME: MAX_CONFIG_BYTES, WEIGHTS_NAME: MAX_WEIGHTS_BYTES}
_PATIENCE = (0.5, 1.0, 2.0)
EXTRAS = (CARD_NAME, METRICS_NAME)


def fetch(
    source: str | Path, *, revision: str | None = None, subfolder: str | None = None, token: Token = None
) -> Path:
    """The local folder of an adapter: a folder as it is, or the cached files of a Hub repo, all of one commit.

    Without a connection the cache answers, if it holds that commit whole.

    Raises:
        AdapterFormatError: files that are too large, that were changed on the way, or no adapter.
        RepositoryNotFoundError, GatedRepoError, RevisionNotFoundError, LocalEntryNotFoundError: huggingface_hub's own.
    """
    inside = inside_repo(subfolder)
    local = Path(source).expanduser()
    if local.exists() or not is_hub_id(str(source)):
        if revision is not None:
            raise AdapterFormatError(
                f"{source} is a folder and has no revision={revision!r}; give a Hub id (owner/name)"
            )
        return local / inside
    repo = str(source)
    commit = _commit(repo, f"{inside}{CONFIG_NAME}", revision, token)
    found = [_file(repo, f"{inside}{name}", commit, token, limit) for name, limit in _LIMITS.items()]
    return found[0].parent


def pull(
    repo_id: str,
    folder: str | Path,
    *,
    revision: str | None = None,
    subfolder: str | None = None,
    token: Token = None,
) -> Path:
    """Copy an adapter, its card and its metrics from the Hub into a folder of yours.

    Raises:
        AdapterSaveError: a folder that holds a model's own config.json; and what `fetch` raises.
    """
    folder = Path(folder)
    if (folder / "config.json").exists():
        raise AdapterSaveError(
            f"{folder} holds a model's own config.json; an adapter beside it breaks it; take another"
        )
    cached = fetch(repo_id, revision=revision, subfolder=subfolder, token=token)
    read_adapter(cached)
    commit = _snapshot(cached)
    for name in (*_LIMITS, *EXTRAS):
        try:
            file = _file(repo_id, f"{inside_repo(subfolder)}{name}", commit, token, MAX_CONFIG_BYTES)
        except EntryNotFoundError:
            if name in _LIMITS:
                raise
            continue
        write_atomically(folder / name, file.read_bytes())
    return folder


def subfolders_of(repo_id: str, revision: str | None = None, token: Token = None) -> list[str]:
    """The subfolders of a repo that hold adapters."""
    paths = [PurePosixPath(p) for p in HfApi(token=token).list_repo_files(repo_id, revision=revision)]
    return sorted(str(path.parent) for path in paths if path.name == CONFIG_NAME and len(path.parts) > 1)


def cached_commit(repo_id: str, revision: str | None = None) -> str | None:
    """The commit of a model that was loaded here from the Hub, as the cache knows it; None where it does not."""
    for name in ("config.json", "model.safetensors"):
        path = try_to_load_from_cache(repo_id, name, revision=revision or "main")
        if isinstance(path, str):
            return _snapshot(Path(path))
    return None


def _commit(repo: str, path: str, revision: str | None, token: Token) -> str:
    """The commit that `revision` stands for: the server's word, or the cache's where the server cannot be reached."""
    kept = try_to_load_from_cache(repo, path, revision=revision or "main")
    try:
        metadata = _metadata(repo, path, revision, token, patience=() if isinstance(kept, str) else _PATIENCE)
    except EntryNotFoundError as error:
        raise _no_adapter(repo, path, revision, token) from error
    except Exception as error:
        if not _is_unreachable(error):
            raise
        if isinstance(kept, str):
            return _snapshot(Path(kept))
        raise LocalEntryNotFoundError(
            f"{repo} (revision {revision or 'main'}) cannot be reached ({_first_line(error)}) and {path} is not in the "
            "cache; connect once, or give a folder"
        ) from error
    _refuse_large(repo, path, metadata.size, MAX_CONFIG_BYTES)
    file = hf_hub_download(
        repo, path, revision=revision, token=token
    )  # by its branch, so that the cache knows the branch
    return _snapshot(Path(file))


def _metadata(
    repo: str, path: str, revision: str | None, token: Token, patience: Sequence[float] = _PATIENCE
) -> HfFileMetadata:
    """What the server says of a file: size, hash and commit. A busy one is asked again, after each of these seconds."""
    for pause in (*patience, None):
        try:
            return get_hf_file_metadata(hf_hub_url(repo, path, revision=revision), token=token)
        except HfHubHTTPError as error:
            if pause is None or not _is_unreachable(error):
                raise
            time.sleep(pause)
    raise AssertionError("unreachable")


def _is_unreachable(error: Exception) -> bool:
    """Whether the server did not answer or could not: no word about the repo, so that the cache may speak."""
    if isinstance(error, HfHubHTTPError):
        return error.response is not None and error.response.status_code >= 500
    return not isinstance(error, (EntryNotFoundError, HFValidationError))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _file(repo: str, path: str, commit: str, token: Token, limit: int) -> Path:
    """One file of one commit, in the cache, of a size that is read and with the content that its hash promises."""
    if not isinstance(try_to_load_from_cache(repo, path, revision=commit), str):
        try:
            size = _metadata(repo, path, commit, token).size
        except Exception as error:
            if not _is_unreachable(error):
                raise
            raise LocalEntryNotFoundError(
                f"the cache holds a part of {repo} at {commit[:12]} and lacks {path} ({_first_line(error)}); connect "
                "once to complete it"
            ) from error
        _refuse_large(repo, path, size, limit)
    file = Path(hf_hub_download(repo, path, revision=commit, token=token))
    stored = file.resolve()
    if not _is_content_of(stored.name, stored.read_bytes()):
        stored.unlink()
        file.unlink(missing_ok=True)
        raise AdapterFormatError(
            f"{path} of {repo} is not what its hash {stored.name[:12]} promises: it was changed on the way or on disk; "
            "it was removed from the cache, so the next call downloads it again"
        )
    return file


def _refuse_large(repo: str, path: str, size: int | None, limit: int) -> None:
    if size is None or size > limit:
        raise AdapterFormatError(f"{path} in {repo} has {size or 0:,} bytes, at most {limit:,} are downloaded")


def _is_content_of(name: str, data: bytes) -> bool:
    """Whether `data` has the hash that the cache keeps it under: sha256 for large files, git's for the others."""
    if len(name) == 64:
        return hashlib.sha256(data).hexdigest() == name
    if len(name) == 40:
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == name
    return True  # a cache without symlinks (Windows) keeps no hash


def _no_adapter(repo: str, path: str, revision: str | None, token: Token) -> AdapterFormatError:
    """There is no adapter at `path`; there may be some in subfolders."""
    inside = subfolders_of(repo, revision, token)
    hint = f"it holds the adapters {inside}: pass subfolder=" if inside else "it holds no SPeaR adapter"
    return AdapterFormatError(f"{repo} has no {path}; {hint}")


def _snapshot(path: Path) -> str:
    """The commit in a path of the cache: .../snapshots/<commit>/..."""
    parts = path.parts
    return parts[len(parts) - 1 - parts[::-1].index("snapshots") + 1]


def inside_repo(subfolder: str | None) -> str:
    """ "fog/5" -> "fog/5/"; a place outside the repo is refused."""
    if not subfolder:
        return ""
    parts = PurePosixPath(subfolder).parts
    if PurePosixPath(subfolder).is_absolute() or ".." in parts or "\\" in subfolder or ":" in subfolder:
        raise AdapterFormatError(
            f'subfolder={subfolder!r} is not allowed; it is a path inside the repo, such as "fog/5"'
        )
    return "/".join(parts) + "/"
