"""Compare a built wheel with the tree: every tracked file of the packages is in it, and no other.

Usage: ``check_wheel.py build/dist/kvkeep-….whl`` from the repository's root.
"""

import subprocess
import sys
import zipfile

PACKAGES = ("adapter", "protocol", "server")


def main() -> None:
    """Exit with the difference, if there is one."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *PACKAGES], capture_output=True, text=True, check=True
    )
    tree = set(listed.stdout.split("\n")) - {""}
    with zipfile.ZipFile(sys.argv[1]) as archive:
        names = archive.namelist()
    wheel = {name for name in names if ".dist-info/" not in name}
    if tree != wheel:
        missing, extra = sorted(tree - wheel), sorted(wheel - tree)
        raise SystemExit(f"the wheel lacks {missing}; the wheel has on top {extra}")
    sys.stdout.write(f"{sys.argv[1]}: {len(wheel)} files, the same as in the tree\n")


main()
