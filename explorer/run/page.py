"""A record as one self-contained page: the front end with the record in it, without network access."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from hashlib import sha256
from html import escape
from string import Template

from compiler.record import Record
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
<noscript><p>This page shows what torch.compile made of a program. It needs JavaScript, which is turned off here; \
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
    style = frontend.css()
    added = frontend.added_modules(record)
    script = frontend.page_loader(added)
    manifest = Part.pack("", "manifest", payload.manifest())
    return PAGE.substitute(
        policy=policy((script, frontend.page_script(added)), style),
        title=escape(record.title or "tcompile"),
        style=style,
        data="\n".join(_block(part) for part in [manifest, *payload.parts(), *words_of_languages(record)]),
        script=script,
    )


def policy(scripts: Iterable[str], style: str) -> str:
    """A Content-Security-Policy that allows only these scripts and this style."""
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'sha256-{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(sha256(text.encode()).digest()).decode()


def _block(part: Part) -> str:
    """A data block: a script element of a type that no browser runs; base64 text can't close the element."""
    about = f'data-artifact="{escape(part.artifact)}" data-part="{part.name}" data-digest="{part.digest}"'
    return f'<script type="application/x-tcompile" {about}>{base64.b64encode(part.data).decode()}</script>'
