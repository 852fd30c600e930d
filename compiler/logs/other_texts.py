"""What a log has besides what tcompile reads: artifacts and graphs of other libraries, such as vLLM's."""

from __future__ import annotations

import json
import re
from collections import Counter

from compiler.logs.events import Event, Log
from compiler.logs.parts import PIECE_GRAPH, PIECE_START
from compiler.record import Artifact

_NAME = re.compile(rb'\{"(?:artifact|graph_dump)": ?\{"name": ?"([^"\n]{1,200})"')
_OF_TORCH = re.compile(
    r"""(?x)
    (?:aot|aotautograd|compiled_autograd|compile_worker|cudagraph|dynamo|eager_compile|flex_gemm|fusion_regions
      |fx|inductor|invoke_subgraph|make_fx|min_cut|overlap_scheduling|post_decomp|pre_bucketing|pre_decomp|precompile
      |reorder_communication|scheduler_nodes|sink_waits|torch_dynamo_resume)_\w+
    | (?:after|before)_(?:activation_quantization_\w+|(?:joint|pre_grad|post_grad)_graph)
    | (?:\w+_wrapper|runtime_wrapper_orchestration|mutation_epilogue|backward_prologue|backward_epilogue)
    | compiled_function_(?:forward|backward) | native_dsl_compile
    | (?:get|put)_\w+_code_state | \w+_(?:pre|post)_grad | torch\._\w+\.config
    | code | compiler_collective | graph_execution | pge_profile_vs_analytical | recompile_reasons | torch_version
    | triton_kernel_info
    """
)
"""Names of artifacts and dumped graphs of torch 2.11 to 2.15: shown elsewhere, or another form of what is shown."""


def is_known_name(name: str) -> bool:
    """Whether tcompile shows an artifact of this name elsewhere, or knows that it shows nothing new."""
    return bool(_OF_TORCH.fullmatch(name)) or name == PIECE_START or bool(PIECE_GRAPH.fullmatch(name))


def count_other_names(log: Log) -> Counter[str]:
    """The artifacts and dumped graphs of a log that tcompile doesn't know, by name."""
    found = (_NAME.search(head) for head in log.heads("artifact", "graph_dump"))
    counts = Counter(match[1].decode(errors="replace") for match in found if match is not None)
    return Counter({name: count for name, count in counts.items() if not is_known_name(name)})


def is_other_text(event: Event) -> bool:
    """Whether an event has a text that no other stage shows."""
    named = event.kind in ("artifact", "graph_dump") and bool(event.name)
    return named and not is_known_name(event.name)


def other_text(event: Event, graph: str, count: int) -> Artifact:
    """The text of an event as an artifact of the stage `other`; `count` is that of texts with this name before it."""
    text, fields = event.payload, event.fields if isinstance(event.fields, dict) else {}
    language = "python" if event.kind == "graph_dump" else "text"
    if fields.get("encoding") == "json":
        try:
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            language = "text"  # it is damaged: it is shown as it is
    identity = f"other[{graph} {event.name}{f' {count + 1}' if count else ''}]"
    return Artifact(identity, "other", event.name, language, text, graph)
