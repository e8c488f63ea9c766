"""Builds the preset, unless LMCache is installed where it would go.

``pip install deploy/lmcache_preset`` runs this with the interpreter that it installs for: what lies
in that interpreter's folders is then what the preset would stand beside. A wheel that was built
elsewhere runs no code when it is installed; it overwrites nothing, and refuses when it is loaded.
"""

import site
import sysconfig
from importlib import metadata
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDER = "kvkeep_lmcache_preset"


class BuildWithPath(build_py):
    """Adds the .pth file, which has to lie beside the package's folder."""

    def run(self) -> None:
        """Builds."""
        super().run()
        Path(self.build_lib, f"{FOLDER}.pth").write_text(f"{FOLDER}\n", encoding="utf-8")


def refuse_over_lmcache() -> None:
    """Ends the build with one line when LMCache itself is installed.

    Raises:
        SystemExit: it is.
    """
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    folders.add(site.getusersitepackages())
    for found in metadata.distributions(path=sorted(folders)):
        if (found.metadata["Name"] or "").lower() == "lmcache":
            raise SystemExit(
                f"kvkeep-lmcache-preset is not installed: LMCache {found.version} is, in "
                f"{found.locate_file('')}. Uninstall it, or leave it and name kvkeep's connector "
                "by its module, adapter.connector."
            )


refuse_over_lmcache()
setup(cmdclass={"build_py": BuildWithPath})
