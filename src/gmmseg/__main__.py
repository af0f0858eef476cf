"""`python -m gmmseg` is the command `gmmseg`."""

from gmmseg.cli import main

if __name__ == "__main__":
    main()
