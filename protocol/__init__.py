"""What server and adapter say to each other: messages, limits, errors, keys, layouts.

Sans-IO: no socket, file, clock or thread in here; time is an argument and effects come back as
data. Both other packages stand on this one, and it knows neither. Runs in the server's process, in
its copiers and in every engine.

Importing it checks that ``server`` and ``adapter``, if they can be found, are kvkeep's own.
"""

import importlib.util as _util
import os as _os

__distribution__ = "kvkeep"
__version__ = "0.1.0"


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
