"""Functions that TorchDynamo skipped, and the reasons in plain words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import CodeType

from compiler.capture.sources import is_installed

EMPTY = "there is no operation on tensors in it"
NO_TENSORS = "no tensor-related objects found in frame"
# Reasons for torch's own output, and for code whose caller is being compiled.
NOISE = ("frame is already Dynamo-generated code", "frame has already started executing")
_WORDS = {
    NO_TENSORS: "no tensor and no module is among its arguments or in what it refers to",
    "frame is in the Dynamo skipfiles list": "it is in a file that TorchDynamo never compiles",
    "Dynamo tracing is disabled": "torch.compile is disabled (TORCH_COMPILE_DISABLE, or torch._dynamo.config.disable)",
    "an error was suppressed during compilation": "TorchDynamo failed on it",
}


@dataclass(frozen=True, slots=True)
class Skip:
    """A function that was not compiled, and torch's reason."""

    code: CodeType
    why: str

    @property
    def words(self) -> str:
        """The reason in words; for an error in Dynamo, its type and explanation."""
        if self.why in _WORDS:
            return _WORDS[self.why]
        if "No ops traced" in self.why:
            return EMPTY
        kind, _, rest = self.why.partition("\n")
        explanation = re.search(r"Explanation: (.*)", rest)
        return f"{kind}: {explanation[1].strip()}" if explanation else kind


@dataclass
class SkipLog:
    """The user's functions that TorchDynamo skipped in one exploration, and what kept it from compiling any."""

    found: list[Skip] = field(default_factory=list)
    disabled: str = ""

    def add(self, code: CodeType, why: str) -> None:
        theirs = is_installed(code.co_filename) or code.co_name == "<module>" or code.co_filename == "<string>"
        if not theirs and why not in NOISE and not any(skip.code is code for skip in self.found):
            self.found.append(Skip(code, why))

    def worth_showing(self) -> list[Skip]:
        """Skipped functions, without those that do not use tensors."""
        return [skip for skip in self.found if skip.why and skip.why != NO_TENSORS]
