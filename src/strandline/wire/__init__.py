"""Bytes to values and back. Pure: nothing here opens a socket or reads a clock."""
