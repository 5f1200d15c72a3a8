"""Which requests a server that is for its own machine answers."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether a name or address is of this machine alone.

    >>> from spear_hf.utils.loopback import is_loopback
    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_own_request(host: str, origin: str | None) -> bool:
    """Whether the header Host is this machine, and Origin, if there is one, is the same host and port.

    A web page can make its own host name mean 127.0.0.1 (DNS rebinding), or post to 127.0.0.1 directly; a browser tells
    of both in these headers.

    >>> from spear_hf.utils.loopback import is_own_request
    >>> is_own_request("127.0.0.1:8000", None), is_own_request("evil.example:8000", None)
    (True, False)
    """
    try:
        mine = is_loopback(urlsplit(f"//{host}").hostname or "")
        return mine and (origin is None or urlsplit(origin).netloc == host)
    except ValueError:
        return False
