"""Traffic that other tools captured, as the records that `strandline capture` writes."""
