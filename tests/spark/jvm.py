"""How a session of a test is to run. Its driver's JVM is told in `tests/conftest.py`."""

QUICK = {
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.showConsoleProgress": "false",
}
