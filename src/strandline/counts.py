"""A count as people read it: `1 record`, `2 records`."""


def counted(count: int, one: str, many: str | None = None) -> str:
    """So many of something; `many` where more than the end of the word changes."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
