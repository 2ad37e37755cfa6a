"""The composition root: which parts a process has, for which settings. `runtime.py` opens and closes all of them."""
