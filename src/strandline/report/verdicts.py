"""The verdict on one exchange, from what is known of its answers and of what is left when noise is taken out."""

from collections.abc import Collection

from strandline.report.rules import LatencySection
from strandline.report.summary import Kind, Verdict

MISMATCHES = frozenset((Verdict.FAILED, Verdict.STATUS_DIFFERS, Verdict.HEADERS_DIFFER, Verdict.BODY_DIFFERS))
"""What counts as a mismatch. `no source` cannot tell, and `slower` has the right answer."""


def judge(*, is_answered: bool, has_source: bool, kinds: Collection[Kind], is_slower: bool) -> Verdict:
    """The first that is true."""
    if not is_answered:
        return Verdict.FAILED
    if not has_source:
        return Verdict.NO_SOURCE
    if Kind.STATUS in kinds:
        return Verdict.STATUS_DIFFERS
    if Kind.HEADER in kinds:
        return Verdict.HEADERS_DIFFER
    if Kind.BODY in kinds:
        return Verdict.BODY_DIFFERS
    return Verdict.SLOWER if is_slower else Verdict.SAME


def is_slower(source_us: int | None, target_us: int | None, rules: LatencySection) -> bool:
    """Whether one answer took longer than the rules allow. It counts only where the whole endpoint has regressed."""
    if source_us is None or target_us is None:
        return False
    return target_us >= source_us * rules.ratio and target_us - source_us >= rules.slack_ms * 1000
