"""`python -m harness.cli`, where no script is installed."""

from harness.cli import main

if __name__ == "__main__":
    main()
