"""Download adapters from the Hub, and verify them before they are used.

The size of a file is checked before its download, both files of an adapter are of one commit, and the content of each
has the hash that the server gives. A busy server (429, 5xx) is asked again when it says so; then the cache answers, if
it holds the whole adapter. Other errors of huggingface_hub are passed on.
"""

import hashlib
import logging
import math
import re
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from typing import TypeVar

from huggingface_hub import (
    HfApi,
    HfFileMetadata,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.hf_api import RepoFile

from spear_hf.adapters.adapter_config import CONFIG_NAME, MAX_CONFIG_BYTES
from spear_hf.adapters.card import CARD_NAME, is_generated
from spear_hf.adapters.card_metrics import METRICS_NAME
from spear_hf.adapters.containment import contained
from spear_hf.adapters.serialization import MAX_WEIGHTS_BYTES, WEIGHTS_NAME, read_adapter, refuse_model_folder
from spear_hf.backbones.origin import is_hub_id
from spear_hf.errors import AdapterFormatError, SpearError
from spear_hf.utils.folders import write_together
from spear_hf.utils.validation import first_line

Token = str | bool | None
_LIMITS = {CONFIG_NAME: MAX_CONFIG_BYTES, WEIGHTS_NAME: MAX_WEIGHTS_BYTES}
ATTEMPTS = 4
LONGEST_PAUSE = 60.0  # seconds
BUSY = (408, 429, 500, 502, 503, 504)  # HTTP
T = TypeVar("T")
logger = logging.getLogger(__name__)
EXTRAS = (CARD_NAME, METRICS_NAME)


def fetch(
    source: str | Path, *, revision: str | None = None, subfolder: str | None = None, token: Token = None
) -> Path:
    """The local folder of an adapter: a folder as it is, or the cached files of a Hub repo, all of one commit.

    Without a connection, or with a server that fails, the cached files are used if all of that commit are there.

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
        return contained(local, inside) if inside else local
    repo = str(source)
    kept = _whole_in_cache(repo, inside, revision)
    try:
        # with a copy in the cache there is no need to wait for a busy server
        return _downloaded(repo, inside, revision, token, attempts=1 if kept else ATTEMPTS)
    except Exception as error:
        if not _is_unreachable(error):
            raise
        if kept is None:
            raise LocalEntryNotFoundError(
                f"{repo} (revision {revision or 'main'}) cannot be reached ({first_line(error)}) and the cache does "
                f"not hold all files of its adapter {inside}; connect once, or give a folder"
            ) from error
        logger.warning("%s cannot be reached (%s); the adapter in the cache is used", repo, first_line(error))
        return kept


def _whole_in_cache(repo: str, inside: str, revision: str | None) -> Path | None:
    """The folder of an adapter whose files are all in the cache, of one commit; None where one is missing."""
    found = [try_to_load_from_cache(repo, f"{inside}{name}", revision=revision or "main") for name in _LIMITS]
    if not all(isinstance(path, str) for path in found):
        return None
    for name, path in zip(_LIMITS, map(str, found), strict=True):
        _check_hash(repo, f"{inside}{name}", Path(path), _named_hash(Path(path)))
    return Path(str(found[0])).parent


def _downloaded(repo: str, inside: str, revision: str | None, token: Token, attempts: int) -> Path:
    """The folder in the cache of an adapter, from the server; all its files are of one commit."""
    first = f"{inside}{CONFIG_NAME}"
    try:
        metadata = _metadata(repo, first, revision, token, attempts)
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError as error:
        raise _no_adapter(repo, first, revision, token) from error
    commit = metadata.commit_hash or revision or "main"
    found = [_file(repo, f"{inside}{name}", commit, token, limit, attempts) for name, limit in _LIMITS.items()]
    # by the branch, once all is there: the cache then knows which commit the branch is at, for later use offline
    retried(lambda: hf_hub_download(repo, first, revision=revision, token=token), attempts)
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
        except Exception as error:
            if name in _LIMITS or not (isinstance(error, EntryNotFoundError) or _is_unreachable(error)):
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


def _metadata(repo: str, path: str, revision: str | None, token: Token, attempts: int | None = None) -> HfFileMetadata:
    """Size, hash and commit of a file."""
    return retried(lambda: get_hf_file_metadata(hf_hub_url(repo, path, revision=revision), token=token), attempts)


def retried(call: Callable[[], T], attempts: int | None = None) -> T:
    """What `call` returns; where the server is busy (429 or 5xx), it is called again after a pause.

    The pause is the server's Retry-After where it names one, and at most `LONGEST_PAUSE`.

    >>> from spear_hf.adapters.download import retried
    >>> retried(lambda: 3)
    3
    """
    attempts = attempts or ATTEMPTS
    for attempt in range(attempts):
        try:
            return call()
        except HfHubHTTPError as error:
            if attempt == attempts - 1 or not _is_busy(error):
                raise
            time.sleep(_pause(error, attempt))
    raise AssertionError("unreachable")


def _pause(error: HfHubHTTPError, attempt: int) -> float:
    """Seconds to wait: Retry-After in seconds or as a date, else 0.5, 1, 2."""
    asked = "" if error.response is None else error.response.headers.get("Retry-After", "")
    try:
        pause = float(asked)
    except ValueError:
        try:
            pause = parsedate_to_datetime(asked).timestamp() - time.time()
        except (ValueError, TypeError):
            pause = 0.5 * 2**attempt
    return min(max(pause, 0.0), LONGEST_PAUSE) if math.isfinite(pause) else LONGEST_PAUSE


def _is_busy(error: Exception) -> bool:
    return isinstance(error, HfHubHTTPError) and error.response is not None and error.response.status_code in BUSY


def _is_unreachable(error: Exception) -> bool:
    """True if the server is unreachable or failed, so the cache may be used; False if it answered about the repo."""
    if isinstance(error, (LocalEntryNotFoundError, OfflineModeIsEnabled)):
        return True
    if isinstance(error, HfHubHTTPError) and not isinstance(error, EntryNotFoundError):
        return _is_busy(error)
    return not isinstance(error, (EntryNotFoundError, HFValidationError, SpearError))


def _file(repo: str, path: str, commit: str, token: Token, limit: int, attempts: int | None = None) -> Path:
    """The path in the cache of one file of one commit, after its size and its hash were checked."""
    kept = try_to_load_from_cache(repo, path, revision=commit)
    if isinstance(kept, str):
        _check_hash(repo, path, Path(kept), _named_hash(Path(kept)))
        return Path(kept)
    metadata = _metadata(repo, path, commit, token, attempts)
    if metadata.size is None or metadata.size > limit:
        raise AdapterFormatError(
            f"{path} in {repo} has {metadata.size or 0:,} bytes, and at most {limit:,} are downloaded"
        )
    wanted = metadata.etag if _is_hash(metadata.etag) else _listed_hash(repo, path, commit, token)
    file = Path(retried(lambda: hf_hub_download(repo, path, revision=commit, token=token), attempts))
    _check_hash(repo, path, file, wanted, metadata.size)
    return file


def _check_hash(repo: str, path: str, file: Path, wanted: str | None, size: int | None = None) -> None:
    """Remove a file from the cache, and raise, unless its size and its hash are as wanted; None is not checked."""
    stored = file.resolve()
    data = stored.read_bytes()
    if (size is None or len(data) == size) and (wanted is None or _hash_like(wanted, data) == wanted.lower()):
        return
    stored.unlink()
    file.unlink(missing_ok=True)
    raise AdapterFormatError(
        f"{path} of {repo} does not have its hash {(wanted or '')[:12]}: it was changed on the way or on disk; it was "
        "removed from the cache, so the next call downloads it again"
    )


def _is_hash(text: str | None) -> bool:
    return text is not None and re.fullmatch(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}", text) is not None


def _hash_like(wanted: str, data: bytes) -> str:
    """The hash of `data`, of the kind of `wanted`: sha256 for large files, git's for the others."""
    if len(wanted) == 64:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _named_hash(file: Path) -> str | None:
    """The hash in the name of a cached file; None in a cache without links (Windows), whose files were checked."""
    name = file.resolve().name
    return name if _is_hash(name) else None


def _listed_hash(repo: str, path: str, commit: str, token: Token) -> str:
    """The hash that the list of the repo's files gives, for a server whose ETags are none.

    Raises:
        AdapterFormatError: the list gives none either.
    """
    folder = str(PurePosixPath(path).parent)
    listed = HfApi(token=token).list_repo_tree(repo, None if folder == "." else folder, revision=commit)
    for entry in listed:
        if isinstance(entry, RepoFile) and entry.path == path:
            found = entry.lfs.sha256 if entry.lfs else entry.blob_id
            if _is_hash(found):
                return found
    raise AdapterFormatError(
        f"the server names no hash of {path} in {repo}, so a change on the way would not be noticed; give a folder "
        "that you downloaded, or use another server"
    )


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
