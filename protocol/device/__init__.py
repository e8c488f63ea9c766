"""The device seam that both ends of a shared pool stand on. See ``interface``."""
