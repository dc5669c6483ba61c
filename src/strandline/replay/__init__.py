"""Captured HTTP traffic sent to a target with its original order and timing."""
