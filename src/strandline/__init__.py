"""Strandline replays logs in order and on time, and never marks progress past what has been safely delivered."""

__version__ = "0.1.0.dev0"
