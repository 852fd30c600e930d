"""The command `tcompile`, also as `python -m tcompile`."""

from explorer.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
