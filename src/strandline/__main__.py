"""`python -m strandline` is the command `strandline`."""

from strandline.cli import run

if __name__ == "__main__":
    run()
