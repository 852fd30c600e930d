"""What is said of an error that PyTorch raised while it compiled."""

from __future__ import annotations


def inner_error(error: BaseException) -> BaseException:
    """The error that Dynamo or Inductor wrapped, or `error` itself."""
    return getattr(error, "inner_exception", None) or error


def first_lines(error: BaseException, count: int = 4) -> str:
    inner = inner_error(error)
    lines = [line.rstrip() for line in str(inner).splitlines() if line.strip()]
    return "\n".join(lines[:count]) or type(inner).__name__


def hint_of(error: BaseException) -> str:
    inner = inner_error(error)
    if type(inner).__name__ == "InvalidCxxCompiler":
        return "install a C++ compiler (on Debian: apt-get install g++), or leave out --time and --check"
    return f"raised as {type(inner).__name__}; the function itself ran without torch.compile"
