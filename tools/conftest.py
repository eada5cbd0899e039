"""The tools' own tests run alone too: as every program of lqrlab, in float64."""

from lqrlab import compute

compute.setup()
