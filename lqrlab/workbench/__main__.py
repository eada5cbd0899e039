"""``python -m lqrlab.workbench`` is the command ``lqrlab``."""

from lqrlab.workbench.cli import main

if __name__ == "__main__":
    main(prog_name="lqrlab")
