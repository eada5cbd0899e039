"""The picture of a panel in the README: ``python docs/panel.py docs/loop_shaper.svg``."""

import sys

from lqrlab import compute
from lqrlab.workbench import widgets

compute.setup()
widgets.loop_shaper("pendulum", values={"notch": 12.0, "at_notch": 40.0}).save(sys.argv[1])
