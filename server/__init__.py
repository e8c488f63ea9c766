"""The cache server of a node: ``python -m server launch``.

Owns the arena, the index and the tiers, in a process of its own. Stands on ``protocol`` and never
imports ``adapter``, torch or TensorRT-LLM.

Importing it checks that ``protocol`` and ``adapter``, if they can be found, are kvkeep's own.
"""

import importlib.util as _util
import os as _os

__distribution__ = "kvkeep"


def _check_siblings() -> None:
    """Run ``protocol/siblings.py`` from the folder beside this one, whoever owns its name."""
    root = _os.path.dirname(_os.path.dirname(_os.path.abspath(__file__)))
    path = _os.path.join(root, "protocol", "siblings.py")
    spec = _util.spec_from_file_location("_kvkeep_siblings", path)
    if spec is None or spec.loader is None or not _os.path.isfile(path):
        raise ImportError(f"kvkeep's install is incomplete: {path} is missing; install it again")
    module = _util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.check(__file__)


_check_siblings()
