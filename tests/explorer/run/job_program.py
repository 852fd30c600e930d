"""A program whose compilations have many outcomes; its exit code is 5."""

import sys

import torch


@torch.compile(backend="eager")
def broken(x):
    y = x.sin()
    sys.stdout.write("between\n")
    return y + 1


@torch.compile(backend="eager", dynamic=False)
def resized(x):
    return x * 2


@torch.compile(backend="eager")
def given_up(x):
    for _ in range(2):
        x = x + 1
        torch._dynamo.graph_break()
    return x


@torch.compile(backend="eager", fullgraph=True)
def failing(x):
    return x if x.sum() > 0 else x + 1


@torch.compile(backend="eager")
def empty(x):
    return x


def main() -> None:
    torch._dynamo.config.recompile_limit = 3
    broken(torch.ones(2))
    for size in range(2, 7):
        resized(torch.ones(size))
    given_up(torch.ones(2))
    empty(torch.ones(2))
    try:
        failing(torch.ones(2))
    except torch._dynamo.exc.Unsupported:
        sys.stdout.write("failed\n")
    torch._dynamo.reset()
    broken(torch.ones(3))


if __name__ == "__main__":
    main()
    raise SystemExit(5)
