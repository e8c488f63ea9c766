"""CUDA behind the device seam: the driver's calls, checked, and what copiers and adapters need.

Nothing here is imported before ``protocol.device.backends`` has found memory or a name that is
CUDA's. It stands on NVIDIA's own bindings (``cuda.bindings``) alone, whose calls let other threads
of Python run; cupy is needed by who asks for an array of opened memory, and by nobody else.
"""
