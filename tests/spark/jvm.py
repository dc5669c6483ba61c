"""How a JVM that lives a minute is to run: half of its CPU would go to compiling what is not run again."""

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK = {
    "spark.driver.extraJavaOptions": OPTIONS,
    "spark.executor.extraJavaOptions": OPTIONS,
    "spark.ui.showConsoleProgress": "false",
}
