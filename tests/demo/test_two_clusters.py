"""`strandline demo proxy`, as its users run it."""

from tests.support import TIMEOUT, run_strandline


def test_the_demo_of_the_proxy_kills_a_cluster_and_loses_nothing() -> None:
    done = run_strandline("demo", "proxy", "--seconds", "3", timeout=5 * TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert "The west is killed (SIGKILL)" in done.stdout
    assert done.stdout.rstrip().endswith("Nothing is lost.")


def test_a_time_that_cannot_be_is_refused() -> None:
    done = run_strandline("demo", "proxy", "--seconds", "0")
    assert done.returncode == 2
    assert "--seconds takes more than 0" in done.stderr
