"""Subjects that stand on the library; nothing of the library imports one, and each is a name of ``lqrlab`` too.

What they add elsewhere is found by entry points: commands (``lqrlab.commands``), panels (``lqrlab.panels``), readers
of plants' files (``lqrlab.plant_files``). A class of controllers brings its policy: ``@simulation.bind.register``.
"""
