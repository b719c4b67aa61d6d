"""The parts of `bench/study.py`."""
