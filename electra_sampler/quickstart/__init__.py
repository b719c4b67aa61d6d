"""A small corpus and task made from the installed packages, and a run of the whole pipeline on them."""
