"""The cache server of a node: ``python -m server launch``.

Owns the arena, the index and the tiers, in a process of its own. Stands on ``protocol`` and never
imports ``adapter``, torch or TensorRT-LLM.

Importing it checks that ``protocol`` and ``adapter``, if they can be found, are kvkeep's own.
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
