"""How much one client may ask for, and how much all of them together: the section `limits` of the configuration."""

from typing import Annotated

from msgspec import Meta

from strandline.config import Section

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Size = Annotated[int, Meta(ge=1024, le=1 << 34)]


class Limits(Section, frozen=True, kw_only=True):
    """Bounds; see docs/gateway.md."""

    connections: Count = 20_000
    connections_per_address: Count = 10_000
    subscriptions: Count = 1_000
    message_bytes: Size = 64 << 10
    messages_per_s: Count = 100
    handshake_s: Seconds = 10.0
    queue_bytes: Size = 1 << 20
    """What may wait to be written to a client before it counts as slow."""
    page: Count = 100
    """Replayed messages before the client has to ask for more, unless it says itself how many."""
    page_s: Seconds = 5.0
    cold_every_s: Seconds = 10.0
    """One replay from Kafka per client in so many seconds; what is in memory and following pages are free."""
    cold_clients: Count = 100
    """How many clients of one subject, or of one address where they are anonymous, have such a turn of their own."""
    cold_at_once: Count = 64
    """Replays from Kafka that go on at once, of all clients; fewer while the gateway is late."""
    cold_waiting: Annotated[int, Meta(ge=0, le=1_000_000)] = 1_000
    """How many more may wait for that."""
    cold_wait_s: Seconds = 5.0
    """How long."""
