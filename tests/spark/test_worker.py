"""A process of Spark that was settled."""

import subprocess
import sys

from tests.support import TIMEOUT

SETTLED = """
import gc
from strandline.spark.worker import settle

class Ring:
    def __init__(self):
        self.me = self

settle()
frozen = gc.get_freeze_count()
Ring()
found = gc.collect()
settle()
print(frozen > 10_000, found > 0, gc.get_freeze_count() <= frozen)
"""


def test_what_was_loaded_is_never_looked_at_again_and_later_garbage_is_collected() -> None:
    told = subprocess.run([sys.executable, "-c", SETTLED], capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert told.stdout.split() == ["True", "True", "True"]
