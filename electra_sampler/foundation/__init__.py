"""Shared code: strict configuration, command line, files, randomness. Imports no other package of the project."""
