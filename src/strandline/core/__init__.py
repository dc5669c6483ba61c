"""The decisions of the system. Pure: state and time come in as arguments, a decision goes out."""
