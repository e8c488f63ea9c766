"""A simulated CUDA for tests, in which a mistake of order shows. See ``driver``."""
