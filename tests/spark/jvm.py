"""How Spark of a test is to run. The JVM of its driver is told the same in `tests/conftest.py`."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK = {"spark.executor.extraJavaOptions": SHORT_LIVED, "spark.ui.showConsoleProgress": "false"}
