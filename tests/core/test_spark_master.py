"""A master that Spark does not know is refused before a JVM is started to say so."""

import pytest

from strandline.core.spark_master import check_master
from strandline.errors import OptionError

KNOWN = (
    "local", "local[4]", "local[*]", "local[4,3]", "local[*, 3]", "local-cluster[2,1,1024]", "spark://h:7077",
    "spark://a.example:7077,b.example:7077", "spark://[::1]:7077", "yarn", "k8s://https://h:443", "k8s://h",
)  # fmt: skip


@pytest.mark.parametrize("master", KNOWN)
def test_one_that_spark_knows_is_taken_as_it_is(master: str) -> None:
    assert check_master(master) == master


@pytest.mark.parametrize("master", ["", "foo", "local[", "local[x]", "localhost", "spark://h", "http://h:1", "yarn-x"])
def test_any_other_is_refused_with_those_that_there_are(master: str) -> None:
    with pytest.raises(OptionError, match=r"is no master of Spark; it is local, .*spark://HOST:7077"):
        check_master(master)
