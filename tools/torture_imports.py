"""What the commands that ``torture.py`` kills import, once for all of them; nothing is computed here."""

import h5py  # noqa: F401
import matplotlib.pyplot as plt  # noqa: F401
import pandas as pd  # noqa: F401

from lqrlab import dataset, learning  # noqa: F401
from lqrlab.workbench.cli import main  # noqa: F401
from lqrlab.workbench.figures import data_card  # noqa: F401
from lqrlab.workbench.runs import sweep  # noqa: F401
