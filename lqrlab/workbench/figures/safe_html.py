"""HTML that runs nothing and loads nothing: what pages may do, what of other people's markup is kept, LaTeX as MathML.

Names, units, titles and messages are text and are escaped where they are written. What is markup already, as the output
of a notebook or its Markdown, goes through :func:`sanitise`, which keeps the elements and attributes listed here.
"""

import base64
import hashlib
import html
import re
from pathlib import Path
from xml.etree import ElementTree

import latex2mathml.converter
import nh3

from lqrlab.compute.files import write_atomic

POLICY = (
    "default-src 'none'; img-src data:; media-src data:; font-src data:; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)
"""The content security policy of a page: no script, no form, and nothing from elsewhere."""


def policy(script: str) -> str:
    """The policy of a page with one script of ours, or with none: this text and no other may run."""
    if not script:
        return POLICY
    return f"{POLICY}; script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


_TEXT = """
a abbr article aside b bdi bdo blockquote br caption cite code col colgroup dd del details dfn div dl dt em figcaption
figure h1 h2 h3 h4 h5 h6 header hr i img input ins kbd label li main mark ol p pre q rp rt ruby s samp section small
source span strong sub summary sup table tbody td tfoot th thead time tr u ul var video wbr
"""
_FORMULAS = """
math menclose merror mfrac mi mlabeledtr mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace
msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover
"""
_DRAWINGS = """
circle clipPath defs ellipse g image line linearGradient marker mask path pattern polygon polyline radialGradient rect
stop svg symbol text textPath tspan use
"""  # nothing that changes attributes, runs a script or holds HTML
_ATTRIBUTES = """
align alt autoplay checked class colspan controls datetime decoding dir disabled height href id lang loop muted open
reversed role rowspan scope src start style tabindex title type valign width xmlns

accent accentunder columnalign columnlines columnspacing depth display displaystyle fence form frame framespacing
largeop linethickness lspace mathbackground mathcolor mathsize mathvariant maxsize minsize movablelimits notation
rowalign rowlines rowspacing rspace scriptlevel separator stretchy symmetric voffset

alignment-baseline baseline-shift clip-path clip-rule clipPathUnits color cx cy d dominant-baseline dx dy fill
fill-opacity fill-rule font-family font-size font-style font-variant font-weight fx fy gradientTransform gradientUnits
image-rendering lengthAdjust letter-spacing marker-end marker-mid marker-start markerHeight markerUnits markerWidth mask
maskContentUnits maskUnits offset opacity orient overflow pathLength patternContentUnits patternTransform patternUnits
points preserveAspectRatio r refX refY rotate rx ry shape-rendering spreadMethod startOffset stop-color stop-opacity
stroke stroke-dasharray stroke-dashoffset stroke-linecap stroke-linejoin stroke-miterlimit stroke-opacity stroke-width
text-anchor text-decoration text-rendering textLength transform vector-effect version viewBox visibility word-spacing
writing-mode x x1 x2 y y1 y2
"""
_GONE = """
annotation annotation-xml applet desc embed foreignObject frame frameset iframe metadata noembed noframes noscript
object plaintext script select style template textarea title xmp
"""  # with all that is in them
_STYLED = {"style", "fill", "stroke", "clip-path", "mask", "marker-start", "marker-mid", "marker-end"}
_LOADS = re.compile(
    r"[\\<]|@import|@namespace|javascript:|expression\(|behavior|-moz-binding"
    r"|(?:url|src|image|image-set|cross-fade)\(\s*['\"]?(?!\s|['\"]|data:|#)",
    re.I,
)


def plain_css(text: str) -> bool:
    """True of a style that loads and runs nothing; one with a backslash could hide that it does."""
    return not _LOADS.search(text)


def _kept(tag: str, name: str, value: str) -> str | None:
    """The value of an attribute, or None if it is left out."""
    if name == "src" or (name == "href" and tag == "image"):
        return value if re.match(r"data:(image|video|audio)/", value, re.I) else None
    if name == "href" and tag != "a":  # a part of the same drawing
        return value if value.startswith("#") else None
    if name == "href":
        return None if re.sub(r"[\0-\x20]", "", value).lower().startswith("data:") else value
    return None if name in _STYLED and not plain_css(value) else value


_CLEANER = nh3.Cleaner(
    tags=set((_TEXT + _FORMULAS + _DRAWINGS).split()),
    clean_content_tags=set(_GONE.split()),
    attributes={"*": set(_ATTRIBUTES.split())},
    generic_attribute_prefixes={"aria-"},
    attribute_filter=_kept,
    set_tag_attribute_values={"input": {"type": "checkbox"}},
    url_schemes={"http", "https", "mailto", "data"},
    link_rel="noreferrer",
)


def unbroken(text: str) -> str:
    """Text in which no line ends between a number and its unit."""
    units = "%|°|[mµnkMGc]?(?:s|m|g|N|V|A|W|Hz|Pa|J|K|B|rad|min|h|d)\\b"
    return re.sub(f"(?<=[\\d∞⁰¹²³⁴-⁹]) (?={units})", "\N{NO-BREAK SPACE}", text)


def sanitise(markup: str) -> str:
    """Markup without all that is not known to be harmless, read and written as browsers do."""
    return _CLEANER.clean(markup)


_BRACKETS = {"p": ("(", ")"), "b": ("[", "]"), "B": (r"\{", r"\}"), "v": ("|", "|"), "V": (r"\lVert", r"\rVert")}
_REWRITTEN = (
    (r"\\(begin|end)\{(align|aligned|gather\*?|gathered|eqnarray\*?|equation\*?|multline\*?)\}", r"\\\1{align*}"),
    (r"\\mathrm\{([^{}\\]*)\}", r"\\text{\1}"),  # a single letter would come out slanted
    (r"\\operatorname\*?\{([^{}]*)\}", lambda m: r"\mathop{\text{" + re.sub(r"\\[,;: ]", " ", m[1]) + "}}"),
    (r"\\(label|nonumber|notag)(\{[^{}]*\})?", ""),
    # brackets that grow with what they hold
    (r"\\begin\{([pbBvV])matrix\}", lambda m: rf"\left{_BRACKETS[m[1]][0]}\begin{{matrix}}"),
    (r"\\end\{([pbBvV])matrix\}", lambda m: rf"\end{{matrix}}\right{_BRACKETS[m[1]][1]}"),
)

# a sign after an operator or a space belongs to what follows: = −Kx, not = − Kx
_SIGN = re.compile(
    r"((?:<mo(?: [^>]*)?>(?![)\]}|‖])[^<]*</mo>|<mspace[^>]*/>))"
    r"<mo>([−+])</mo>"
)


def mathml(latex: str, *, display: bool = False) -> str:
    """LaTeX as MathML, which browsers show without any script; what cannot be converted is shown as it is written."""
    text = latex.strip()
    for pattern, replacement in _REWRITTEN:
        text = re.sub(pattern, replacement, text)
    if display:  # below, where a formula stands alone
        text = re.sub(r"\\(min|max|inf|sup|lim)_", r"\\\1\\limits_", text)
    try:
        tree = latex2mathml.converter.convert_to_element(text, display="block" if display else "inline")
    except Exception:  # its parser raises many kinds, some of them built-in ones
        return f'<code class="latex">{html.escape(latex.strip())}</code>'
    for part in tree.iter():
        part.text = html.unescape(part.text or "")
        for name in {"href", "style", "class", "id"} & part.attrib.keys():
            del part.attrib[name]
    return _SIGN.sub(r'\1<mo form="prefix">\2</mo>', ElementTree.tostring(tree, encoding="unicode"))


def write_page(path: str | Path, title: str, body: str, head: str = "") -> Path:
    """Write a complete HTML file without a script; ``title`` is text, ``body`` and ``head`` are markup."""
    held = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    head = f'<head><meta charset="utf-8">{held}<title>{html.escape(title)}</title>{head}</head>'
    body = re.sub(r">[^<]+<", lambda between: unbroken(between[0]), body)
    return write_atomic(path, f'<!DOCTYPE html><html lang="en-GB">{head}<body>{body}</body></html>')
