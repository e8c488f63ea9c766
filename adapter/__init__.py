"""What runs inside a TensorRT-LLM process: the KV connector's scheduler and worker.

Stands on ``protocol`` and never imports ``server``. Importing the package itself loads neither
torch nor TensorRT-LLM; the modules that need them load them when they are used.

Importing it checks that ``protocol`` and ``server``, if they can be found, are kvkeep's own.
"""

import importlib.util as _util

__distribution__ = "kvkeep"


def _check_siblings() -> None:
    """Run ``protocol/siblings.py`` from the folder beside this one, whoever owns its name."""
    path = f"{__path__[0]}/../protocol/siblings.py"
    spec = _util.spec_from_file_location("_kvkeep_siblings", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"Python has no loader for {path}")
    module = _util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError as error:
        raise ImportError(f"kvkeep is incomplete, install it again: no {error.filename}") from error
    module.check(__file__)


_check_siblings()
