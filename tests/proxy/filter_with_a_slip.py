"""A filter of a user's with a slip in its module."""


class Slip:
    """Its default is a name that is none."""

    limit = nothing  # type: ignore[name-defined]  # noqa: F821
