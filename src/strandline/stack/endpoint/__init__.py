"""A Kinesis endpoint of our own: fast, with the real limits, with faults on request, and it can be read back."""
