"""Strandline replays logs in order and on time, and never marks progress past what has been safely delivered."""

from strandline import compiled

__version__ = "0.1.0.dev0"

# Before any other module is imported.
compiled.use()
