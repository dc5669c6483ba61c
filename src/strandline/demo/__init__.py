"""A small shop and its customers: traffic to capture, and a changed version to replay it against."""
