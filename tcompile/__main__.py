"""Run the `tcompile` command by `python -m tcompile`."""

from explorer.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
