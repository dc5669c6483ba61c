"""Several processes of one server on the same ports: a crew that is kept, and the post that each of it has."""
