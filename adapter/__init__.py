"""What runs inside a TensorRT-LLM process: the KV connector's scheduler and worker.

Stands on ``protocol`` and never imports ``server``. Importing the package itself loads neither
torch nor TensorRT-LLM; the modules that need them load them when they are used.

Importing it checks that ``protocol`` and ``server``, if they can be found, are kvkeep's own.
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
