"""What the presets of TensorRT-LLM name. Checks that ``adapter`` is kvkeep's before it is used."""

import adapter as _adapter

if getattr(_adapter, "__distribution__", "") != "kvkeep":
    raise ImportError(
        f"kvkeep-lmcache-preset needs kvkeep's package 'adapter'; Python found another one, "
        f"{getattr(_adapter, '__file__', None) or 'without a file'}: remove it from sys.path.",
        name="adapter",
    )
