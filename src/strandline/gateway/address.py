"""Where a gateway is, as a client is told, and what of that may be shown: the rest may hold a secret."""

from websockets.exceptions import InvalidURI
from websockets.uri import parse_uri

from strandline.errors import OptionError


def shown(url: str, named: str = "url") -> str:
    """An address as people may see it; raises OptionError where it is none. `named` is what it was given as."""
    try:
        found = parse_uri(url)
    except (InvalidURI, ValueError):
        part = url.partition("?")[0].rpartition("@")[2]
        raise OptionError(f"{named} '{part}' is no address of a gateway: ws://HOST:PORT, or wss:// with TLS") from None
    host = f"[{found.host}]" if ":" in found.host else found.host
    return f"{'wss' if found.secure else 'ws'}://{host}:{found.port}{found.path.rstrip('/')}"
