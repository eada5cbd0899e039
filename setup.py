"""What pyproject.toml cannot say: the notebooks and profiles go into the wheel, from the one place where they are."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithNotebooks(build_py):
    """Copies ``notebooks/`` into the package that is built; an editable installation finds them in the checkout."""

    def run(self) -> None:
        """Build the package."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "lqrlab" / "workbench" / "notebooks"
            shutil.copytree("notebooks", target, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithNotebooks})
