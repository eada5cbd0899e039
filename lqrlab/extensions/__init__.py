"""Subpackages that need an extra each and that nothing else imports: identification, environments, robots, deployment.

What they add elsewhere is found through entry points: readers of plants' files (``lqrlab.plant_files``), panels
(``lqrlab.panels``), commands (``lqrlab.commands``).
"""
