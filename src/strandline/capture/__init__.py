"""Live HTTP traffic captured to Kafka: a reverse proxy that passes bytes unchanged and records them."""

from strandline.capture.config import Settings
from strandline.capture.proxy import Proxy
from strandline.capture.recorder import Reliable
from strandline.capture.redaction import Action, Redaction

__all__ = ["Action", "Proxy", "Redaction", "Reliable", "Settings"]
