"""Entry point of `python -m tcompile`, which runs the `tcompile` command."""

import sys


def main() -> int:
    """Run the `tcompile` command, and return its exit code. `tcompile run` starts its command before anything else."""
    if sys.argv[1:2] == ["run"]:
        from tcompile import run_command

        return run_command.main(sys.argv[2:])
    from explorer import cli

    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())
