"""Download adapters from the Hub, and verify them before they are used.

The size of a file is checked before its download, both files of an adapter are of one commit, and the content of each
has the hash under which the server and the cache keep it. Errors of huggingface_hub are passed on.
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
from spear_hf.adapters.card import CARD_NAME, is_generated
from spear_hf.adapters.card_metrics import METRICS_NAME
from spear_hf.adapters.serialization import MAX_WEIGHTS_BYTES, WEIGHTS_NAME, read_adapter, refuse_model_folder
from spear_hf.backbones.origin import is_hub_id
from spear_hf.errors import AdapterFormatError
from spear_hf.utils.folders import write_together
from spear_hf.utils.validation import first_line

Token = str | bool | None
_LIMITS = {CONFIG_NAME: MAX_CONFIG_BYTES, WEIGHTS_NAME: MAX_WEIGHTS_BYTES}
_RETRY_PAUSES = (0.5, 1.0, 2.0)  # seconds
EXTRAS = (CARD_NAME, METRICS_NAME)


def fetch(
    source: str | Path, *, revision: str | None = None, subfolder: str | None = None, token: Token = None
) -> Path:
    """The local folder of an adapter: a folder as it is, or the cached files of a Hub repo, all of one commit.

    Without a connection, the cached files are used if all of that commit are there.

    Args:
        source: a folder, or a Hub id "owner/name".
        revision: branch, tag or commit of the repo.
        subfolder: where the adapter is in the folder or repo.
        token: for private repos; None takes the one that the user has stored.

    >>> from spear_hf.adapters.download import fetch
    >>> fetch("./adapters", subfolder="fog").as_posix()  # a Hub id would be downloaded
    'adapters/fog'

    Raises:
        AdapterFormatError: files that are too large or were changed on the way, or a repo without an adapter.
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
    """`folder`, after an adapter with its card and metrics was copied into it from the Hub.

    Args:
        repo_id, revision, subfolder, token: as for `fetch`.
        folder: made if it is missing.

    >>> from spear_hf.adapters.download import pull
    >>> pull("me/resnet50-fog", "adapters/fog")  # doctest: +SKIP
    PosixPath('adapters/fog')

    Raises:
        AdapterSaveError: a folder that holds a model's own config.json; and what `fetch` raises.
    """
    folder = Path(folder)
    refuse_model_folder(folder)
    cached = fetch(repo_id, revision=revision, subfolder=subfolder, token=token)
    read_adapter(cached)
    commit = _snapshot(cached)
    files: dict[str, bytes | None] = {}
    for name in (*_LIMITS, *EXTRAS):
        try:
            limit = _LIMITS.get(name, MAX_CONFIG_BYTES)
            files[name] = _file(repo_id, f"{inside_repo(subfolder)}{name}", commit, token, limit).read_bytes()
        except EntryNotFoundError:
            if name in _LIMITS:
                raise
            if name != CARD_NAME or is_generated(folder / name):
                files[name] = None  # those of an earlier adapter would say something wrong of this one
    return write_together(folder, files)


def subfolders_of(repo_id: str, revision: str | None = None, token: Token = None) -> list[str]:
    """The subfolders of a Hub repo that hold adapters, sorted.

    >>> from spear_hf.adapters.download import subfolders_of
    >>> subfolders_of("me/resnet50-adapters")  # doctest: +SKIP
    ['fog/5', 'snow']
    """
    paths = [PurePosixPath(p) for p in HfApi(token=token).list_repo_files(repo_id, revision=revision)]
    return sorted(str(path.parent) for path in paths if path.name == CONFIG_NAME and len(path.parts) > 1)


def cached_commit(repo_id: str, revision: str | None = None) -> str | None:
    """The commit of a model that is in this machine's cache; None if it is not there.

    >>> from spear_hf.adapters.download import cached_commit
    >>> cached_commit("nobody/no-model-of-this-name") is None
    True
    """
    for name in ("config.json", "model.safetensors"):
        path = try_to_load_from_cache(repo_id, name, revision=revision or "main")
        if isinstance(path, str):
            return _snapshot(Path(path))
    return None


def _commit(repo: str, path: str, revision: str | None, token: Token) -> str:
    """The commit that `revision` stands for, from the server, or from the cache if the server cannot be reached."""
    kept = try_to_load_from_cache(repo, path, revision=revision or "main")
    try:
        # with a copy in the cache there is no need to wait for a busy server
        pauses = () if isinstance(kept, str) else _RETRY_PAUSES
        metadata = _metadata(repo, path, revision, token, pauses)
    except EntryNotFoundError as error:
        raise _no_adapter(repo, path, revision, token) from error
    except Exception as error:
        if not _is_unreachable(error):
            raise
        if isinstance(kept, str):
            return _snapshot(Path(kept))
        raise LocalEntryNotFoundError(
            f"{repo} (revision {revision or 'main'}) cannot be reached ({first_line(error)}) and {path} is not in the "
            "cache; connect once, or give a folder"
        ) from error
    _refuse_large(repo, path, metadata.size, MAX_CONFIG_BYTES)
    # by the branch, not by the commit: the cache then knows which commit the branch is at, for later use offline
    file = hf_hub_download(repo, path, revision=revision, token=token)
    return _snapshot(Path(file))


def _metadata(
    repo: str, path: str, revision: str | None, token: Token, pauses: Sequence[float] = _RETRY_PAUSES
) -> HfFileMetadata:
    """Size, hash and commit of a file; a busy server is asked again after each of these pauses, in seconds."""
    for pause in (*pauses, None):
        try:
            return get_hf_file_metadata(hf_hub_url(repo, path, revision=revision), token=token)
        except HfHubHTTPError as error:
            if pause is None or not _is_unreachable(error):
                raise
            time.sleep(pause)
    raise AssertionError("unreachable")


def _is_unreachable(error: Exception) -> bool:
    """True if the server is unreachable or failed, so the cache may be used; False if it answered about the repo."""
    if isinstance(error, HfHubHTTPError):
        return error.response is not None and error.response.status_code >= 500
    return not isinstance(error, (EntryNotFoundError, HFValidationError))


def _file(repo: str, path: str, commit: str, token: Token, limit: int) -> Path:
    """The path in the cache of one file of one commit, after its size and its hash were checked."""
    if not isinstance(try_to_load_from_cache(repo, path, revision=commit), str):
        try:
            size = _metadata(repo, path, commit, token).size
        except Exception as error:
            if not _is_unreachable(error):
                raise
            raise LocalEntryNotFoundError(
                f"the cache holds a part of {repo} at {commit[:12]} and lacks {path} ({first_line(error)}); connect "
                "once to complete it"
            ) from error
        _refuse_large(repo, path, size, limit)
    file = Path(hf_hub_download(repo, path, revision=commit, token=token))
    stored = file.resolve()
    if not _is_content_of(stored.name, stored.read_bytes()):
        stored.unlink()
        file.unlink(missing_ok=True)
        raise AdapterFormatError(
            f"{path} of {repo} does not have its hash {stored.name[:12]}: it was changed on the way or on disk; it was "
            "removed from the cache, so the next call downloads it again"
        )
    return file


def _refuse_large(repo: str, path: str, size: int | None, limit: int) -> None:
    if size is None or size > limit:
        raise AdapterFormatError(f"{path} in {repo} has {size or 0:,} bytes, and at most {limit:,} are downloaded")


def _is_content_of(name: str, data: bytes) -> bool:
    """Whether `data` has the hash that is its file name in the cache: sha256 for large files, git's for the others."""
    if len(name) == 64:
        return hashlib.sha256(data).hexdigest() == name
    if len(name) == 40:
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == name
    return True  # a cache without symlinks (Windows) does not name files by their hash


def _no_adapter(repo: str, path: str, revision: str | None, token: Token) -> AdapterFormatError:
    """The error for a repo without an adapter at `path`; it lists the adapters in subfolders."""
    inside = subfolders_of(repo, revision, token)
    hint = f"it holds the adapters {inside}: pass subfolder=" if inside else "it holds no SPeaR adapter"
    return AdapterFormatError(f"{repo} has no {path}; {hint}")


def _snapshot(path: Path) -> str:
    """The commit in a path of the cache: .../snapshots/<commit>/..."""
    parts = path.parts
    return parts[len(parts) - 1 - parts[::-1].index("snapshots") + 1]


def inside_repo(subfolder: str | None) -> str:
    """The subfolder with a final slash, or "" for none.

    >>> from spear_hf.adapters.download import inside_repo
    >>> inside_repo("fog/5")
    'fog/5/'

    Raises:
        AdapterFormatError: a path that is outside the repo.
    """
    if not subfolder:
        return ""
    parts = PurePosixPath(subfolder).parts
    if PurePosixPath(subfolder).is_absolute() or ".." in parts or "\\" in subfolder or ":" in subfolder:
        raise AdapterFormatError(
            f'subfolder={subfolder!r} is not allowed; it is a path inside the repo, such as "fog/5"'
        )
    return "/".join(parts) + "/"
