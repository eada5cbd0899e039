"""LaTeX as MathML, which browsers show without any script."""

import html
import re
from xml.etree import ElementTree

import latex2mathml.converter

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
    """LaTeX as MathML; what cannot be converted is shown as it is written."""
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
