"""Entry point of `python -m tcompile`, which runs the `tcompile` command."""

from explorer.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
