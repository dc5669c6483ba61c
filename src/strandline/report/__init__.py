"""Source and target compared: what differs, how much later and slower, and a page that shows it."""
