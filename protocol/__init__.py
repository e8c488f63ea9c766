"""What server and adapter say to each other: messages, limits, errors, keys, layouts.

Sans-IO: no socket, file, clock or thread in here; time is an argument and effects come back as
data. Both other packages stand on this one, and it knows neither. Runs in the server's process, in
its copiers and in every engine.

Importing it checks that ``server`` and ``adapter``, if they can be found, are kvkeep's own.
"""

import importlib.util as _util

__distribution__ = "kvkeep"
__version__ = "0.1.0"


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
