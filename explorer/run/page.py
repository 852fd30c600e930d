"""A record as one self-contained page: the front end with the record in it, without network access."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from html import escape
from string import Template
from typing import Any

from compiler.record import Artifact, Entity, Record
from explorer.run import frontend
from explorer.run.compiling import KernelCompiler
from explorer.run.payload import Payload
from explorer.run.payload_part import Part, words_of_languages

PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="generator" content="tcompile">
<title>$title</title>
<style>$style</style>
</head>
<body class="tcompile-page">
<noscript><p>This page shows what torch.compile makes of a program. It needs JavaScript, which is turned off here; \
it loads nothing from anywhere.</p></noscript>
<main id="tcompile"></main>
$data
<script type="module">$script</script>
</body>
</html>
""")


def page(record: Record) -> str:
    """The HTML page of a record. The same record gives the same page."""
    payload = Payload(record, pending=KernelCompiler(record).pending_stages())
    return _page_of(payload.manifest(), payload, record.title)


def stage_page(record: Record, stage: str, *, as_graph: bool = False) -> str:
    """A small page with one stage, or the artifact with this id, and its source: for an `<iframe>` in another page.

    It does not hold the record, so it can't be loaded again. With `as_graph`, it opens as a drawing. Raises KeyError
    if the record has no such stage.
    """
    payload = Payload(record)
    first = payload.record[stage]
    chosen = (first,) if stage == first.id else payload.record.of_stage(stage)
    whole = payload.manifest()
    payload.keep_only(_with_sources(payload.record, chosen))
    kept = payload.manifest()
    home = [name for name in whole["home"] if name in kept["home"]]
    opened = {"first": [first.stage if as_graph else first.id], "compare": None, "versus": None, "embedded": True}
    return _page_of(whole | {"home": home, "stages": kept["stages"]} | opened, payload, record.title)


def _with_sources(record: Record, chosen: Sequence[Artifact]) -> list[Artifact]:
    """Artifacts, and the sources that they came from. Their entities are linked to each other and to source lines."""
    entities = {entity.id: entity for entity in record.entities()}
    sources = {entity.id: source.id for source in record.of_stage("source") for entity in source.entities}
    own = {entity.id for artifact in chosen for entity in artifact.entities}
    ends = sources.keys() | own
    linked = [
        replace(each, entities=tuple(
            replace(entity, origins=_nearest(entity.origins, ends, entities)) for entity in each.entities
        ))
        for each in chosen
    ]  # fmt: skip
    used = {sources[name] for each in linked for entity in each.entities for name in entity.origins if name in sources}
    return [source for source in record.of_stage("source") if source.id in used and source not in chosen] + linked


def _nearest(origins: Sequence[str], ends: Collection[str], entities: Mapping[str, Entity]) -> tuple[str, ...]:
    """The nearest ancestors among `ends` that origins lead to, in order."""
    todo, found, seen = list(reversed(origins)), dict[str, None](), set[str]()
    while todo:
        name = todo.pop()
        if name in ends:
            found[name] = None
        elif name in entities and name not in seen:
            seen.add(name)
            todo += reversed(entities[name].origins)
    return tuple(found)


def _page_of(manifest: dict[str, Any], payload: Payload, title: str) -> str:
    added = frontend.added_modules(payload.record)
    style = frontend.css(added)
    script = frontend.page_loader(added)
    first = Part.pack("", "manifest", manifest)
    data = "\n".join(block(part) for part in [first, *payload.parts(), *words_of_languages(payload.record)])
    return html_page(title or "tcompile", style, (script, frontend.page_script(added)), data)


def html_page(title: str, style: str, scripts: Sequence[str], data: str) -> str:
    """A page whose policy allows only these scripts, of which it has the first, and this style."""
    allowed = policy(scripts, style)
    return PAGE.substitute(policy=allowed, title=escape(title), style=style, data=data, script=scripts[0])


def policy(scripts: Iterable[str], style: str) -> str:
    """A Content-Security-Policy that allows only these scripts and this style."""
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'sha256-{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(sha256(text.encode()).digest()).decode()


def block(part: Part, record: str = "") -> str:
    """A data block: a script element of a type that no browser runs; base64 text can't close the element.

    `record` names the record that the part belongs to, on a page with several.
    """
    about = f'data-artifact="{escape(part.artifact)}" data-part="{part.name}" data-digest="{part.digest}"'
    about += f' data-record="{escape(record)}"' if record else ""
    return f'<script type="application/x-tcompile" {about}>{base64.b64encode(part.data).decode()}</script>'
