"""Names and markup that run a script where they are taken for HTML: number i sets ``ran<i>`` of the window."""

import html
import json
from pathlib import Path

import nbformat

new = nbformat.v4
_MARKUP = """
<script>RUN</script>
<SCRIPT/x>RUN</SCRIPT>
<svg><script>RUN</script></svg>
<svg><script>//&NewLine;RUN</script></svg>
<img src=x onerror=RUN>
<img src="x" onerror="RUN">
<img/src=x/onerror=RUN>
<IMG SRC=x OnErRoR=RUN>
<img src=x onerror
=RUN>
<svg onload=RUN>
<svg/onload=RUN>
<svg><g onload=RUN></g></svg>
<svg><image href=x onerror=RUN></image></svg>
<svg><a xlink:href="javascript:RUN"><text y="9">x</text></a></svg>
<svg><a href="java&#9;script:RUN"><text y="9">x</text></a></svg>
<svg><a><animate attributeName=href values="javascript:RUN"></animate><text y="9">x</text></a></svg>
<svg><a><set attributeName=href to="javascript:RUN"></set><text y="9">x</text></a></svg>
<svg><animate onbegin=RUN attributeName=x dur=1s></animate></svg>
<svg><foreignObject><img src=x onerror=RUN></foreignObject></svg>
<svg><foreignObject><iframe srcdoc="<script>RUN</script>"></iframe></foreignObject></svg>
<svg><style><a title="</style><img src=x onerror=RUN>"></a></style></svg>
<svg></p><style><a title="</style><img src=x onerror=RUN>">
<svg><desc><img src=x onerror=RUN></desc></svg>
<svg><title><img src=x onerror=RUN></title></svg>
<svg><![CDATA[><img src=x onerror=RUN>]]></svg>
<a href="javascript:RUN">x</a>
<a href="java&#9;script:RUN">x</a>
<a href="java&#10;script&colon;RUN">x</a>
<a href=" &#1; JaVaScRiPt:RUN">x</a>
<a href="&#106;avascript:RUN">x</a>
<a href="javascript://%0aRUN">x</a>
<a href="vbscript:RUN" onclick=RUN>x</a>
<iframe src="javascript:RUN"></iframe>
<iframe srcdoc="<script>RUN</script>"></iframe>
<iframe srcdoc="&lt;img src=x onerror=RUN&gt;"></iframe>
<object data="javascript:RUN"></object>
<embed src="javascript:RUN">
<form action="javascript:RUN"><button>x</button></form>
<form><button formaction="javascript:RUN">x</button></form>
<form id="f"></form><button form="f" formaction="javascript:RUN">x</button>
<form><input type=image src=x formaction="javascript:RUN"></form>
<input autofocus onfocus=RUN>
<details open ontoggle=RUN><summary>x</summary></details>
<body onload=RUN>
<video><source onerror=RUN></video>
<video src=x onerror=RUN></video>
<p style="animation:q1 1s" onanimationstart=RUN>x<style>@keyframes q1{}</style></p>
<noscript><p title="</noscript><img src=x onerror=RUN>"></p></noscript>
<!--><img src=x onerror=RUN>-->
<!--x--!><img src=x onerror=RUN>
<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=x onerror=RUN&gt;">
<math><mtext></p><img src=x onerror=RUN></mtext></math>
<math><annotation-xml encoding="text/html"><img src=x onerror=RUN></annotation-xml></math>
<textarea><img title="</textarea><img src=x onerror=RUN>"></textarea>
<xmp><p title="</xmp><img src=x onerror=RUN>"></p></xmp>
<template><img src=x onerror=RUN></template><img src=x onerror=RUN>
<base href="javascript:/RUN//"><a href="#">x</a>
<meta http-equiv=refresh content="0;url=javascript:RUN">
"><img src=x onerror=RUN>
'><img src=x onerror=RUN>
" autofocus tabindex=0 onfocus=RUN x="
</style><img src=x onerror=RUN>
</title><img src=x onerror=RUN>
</svg></text></details><img src=x onerror=RUN>
]]><img src=x onerror=RUN>
"""
_LINES = _MARKUP.strip().replace("\n=RUN", "\x0c=RUN").split("\n")  # a form feed is a space to HTML
PAYLOADS = tuple(line.replace("RUN", f"top.ran{i}=1") for i, line in enumerate(_LINES))


def plant_file(path: Path) -> Path:
    """A plant whose states and input are called so."""
    third = len(PAYLOADS) // 3
    # a name that cannot be printed is refused
    *names, name = ("".join(PAYLOADS[i : i + third]).replace("\x0c", " ") for i in (0, third, 2 * third))
    labels = [f"{label} [{unit}]" for label, unit in zip((*names, name), PAYLOADS[-7:-4])]
    content = {"A": [[0, 1], [-1, -0.5]], "B": [[0], [1]], "dt": 0.1, "states": labels[:2], "inputs": labels[2:]}
    path.write_text(json.dumps(content))
    return path


def designs() -> str:
    """What the script of a report's sliders looks for, with words that are hostile."""
    rows = "".join(
        f'<div class="lq-row"><span>{text}</span><b></b><div class="lq-slot"></div></div>' for text in PAYLOADS
    )
    frames = "".join(f'<div class="lq-frame" aria-label="{html.escape(text)}">{text}</div>' for text in PAYLOADS)
    group = f'<div class="lq-frames">{frames}<div class="lq-frame"></div></div>'
    return f'<div class="lq-strip">{rows}<div class="lq-still">{PAYLOADS[0]}</div>{group * 2}</div>'


def run(folder: Path) -> Path:
    """An executed notebook: in its title, headings, parameters, outputs and errors, one after another and together."""

    def output(kind: str, content: str, about: object = None) -> nbformat.NotebookNode:
        return new.new_output("display_data", {kind: content}, metadata={kind: about or {}})

    texts, together = [p.replace("\f", " ") for p in PAYLOADS], "".join(PAYLOADS)
    given = "\n".join(f"p{i}: str = {text!r}  # {text}" for i, text in enumerate(texts))
    cells = [new.new_markdown_cell("# " + " ".join(texts)), new.new_markdown_cell(" ".join(texts))]
    cells.append(new.new_code_cell(given, metadata={"tags": ["parameters"]}))
    cells += [new.new_markdown_cell(f"## {text}\n\n{text}") for text in texts]
    links = (f'[a]({text}) ![b]({text} "{text}") ${text}$\n\n' for text in texts)
    cells.append(new.new_markdown_cell("".join(links)))
    error = new.new_output("error", ename=together, evalue=together, traceback=[together])
    quoted = 'AA" onerror="top.ran0=1" x="'
    outputs = [output("text/html", text) for text in (*PAYLOADS, designs())]
    outputs += [output(f"text/{kind}", together) for kind in ("markdown", "latex", "plain")]
    outputs += [
        output("image/png", quoted, {"alt": together, "width": quoted}),
        output("image/svg+xml", together),
        error,
    ]
    outputs += [new.new_output("stream", name=name, text=together) for name in ("stdout", "stderr")]
    cells.append(new.new_code_cell(together, metadata={"tags": ["summary"]}, outputs=outputs))
    cells.append(new.new_markdown_cell("The end."))  # nothing that is left open swallows it
    (folder / "notebooks").mkdir(parents=True)
    language = {"name": quoted, "pygments_lexer": quoted}
    metadata = {"language_info": language, "papermill": {"parameters": {"p0": together}}}
    nbformat.write(new.new_notebook(cells=cells, metadata=metadata), folder / "notebooks" / "01_names.ipynb")
    (folder / "run.json").write_text(
        json.dumps({"profile": together, "status": together, "commit": together, "versions": {"lqrlab": together}})
    )
    return folder
