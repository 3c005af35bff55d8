"""`python -m ace` is the same as the `ace` command."""

from ace.cli import main

if __name__ == "__main__":
    main()
