"""Curation: which documents, and which of their lines, are worth training on. Judges texts; knows no input files.

`curator` applies the steps in order: language, quality and repetition rules, decontamination.
"""
