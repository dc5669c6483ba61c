"""Captured HTTP traffic sent to a target with its original order and timing.

target = Target("http://127.0.0.1:9001")
kafka = {"bootstrap.servers": "...", "group.id": "..."}
await Replay(Plan(kafka=kafka, target=target, transform=Transform(target.authority), until=Until.LIVE)).run()
"""

from strandline.replay.beginning import From
from strandline.replay.changes import TransformConfig
from strandline.replay.health import WhenDown
from strandline.replay.limits import Limits
from strandline.replay.plan import Plan, Until
from strandline.replay.replay import Replay
from strandline.replay.retries import DefaultRetry, RetryPolicy
from strandline.replay.steps import Request
from strandline.replay.target import Target
from strandline.replay.transforms import Transform

__all__ = [
    "DefaultRetry",
    "From",
    "Limits",
    "Plan",
    "Replay",
    "Request",
    "RetryPolicy",
    "Target",
    "Transform",
    "TransformConfig",
    "Until",
    "WhenDown",
]
