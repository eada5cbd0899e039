"""Analysis of linear plants and loops: modes, controllability, frequency response, margins, steps, norms."""
