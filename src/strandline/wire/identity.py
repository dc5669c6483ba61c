"""The name of a transaction: where in the log it began, the same after a restart, so that a target can drop repeats."""

HEADER = "X-Strandline-Request"
LINE = HEADER.encode() + b": %d-%d.%d"


def request_id(partition: int, offset: int, ordinal: int) -> str:
    """The name: the record with its first byte, by partition and offset, and which of those that begin in it."""
    return f"{partition}-{offset}.{ordinal}"


def marker(partition: int, offset: int, ordinal: int) -> bytes:
    """The header line that tells the target the name, without its line end."""
    return LINE % (partition, offset, ordinal)
