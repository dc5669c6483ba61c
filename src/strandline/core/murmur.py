"""Spark's hash of a text, by which it shares rows out: who knows it knows which partition a row belongs to."""

from struct import iter_unpack

MASK = 0xFFFFFFFF
SEED = 42


def spark_hash(text: str) -> int:
    """What `hash(text)` is in Spark's SQL: Murmur3 of 32 bits, but each byte behind the last whole word by itself."""
    data = text.encode()
    whole = len(data) & ~3
    state = SEED
    for (word,) in iter_unpack("<I", data[:whole]):
        state = _mixed(state, word)
    for byte in data[whole:]:
        state = _mixed(state, byte if byte < 128 else byte - 256)
    state ^= len(data)
    state = (state ^ (state >> 16)) * 0x85EBCA6B & MASK
    state = (state ^ (state >> 13)) * 0xC2B2AE35 & MASK
    state ^= state >> 16
    return state if state < 2**31 else state - 2**32


def share_of(text: str, shares: int) -> int:
    """Which of so many partitions a row goes to that is repartitioned by a text."""
    return spark_hash(text) % shares


def _mixed(state: int, word: int) -> int:
    word = word * 0xCC9E2D51 & MASK
    word = (word << 15 | word >> 17) * 0x1B873593 & MASK
    state ^= word
    return ((state << 13 | state >> 19) & MASK) * 5 + 0xE6546B64 & MASK
