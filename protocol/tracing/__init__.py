"""The trace seam: how a process hands spans to an OpenTelemetry collector. See ``export``."""
