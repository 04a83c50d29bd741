"""Loads the extension.

The threads of OpenMP spin at the end of a parallel region before they sleep. Its runtime reads how
long when it is loaded: as in the program, they sleep after tens of microseconds unless the user
says otherwise. Libraries that are loaded later do not hear of it.
"""
import os

_SPINS, _POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"


def _load():
    bounded = _SPINS not in os.environ and _POLICY not in os.environ
    if bounded:
        os.environ[_SPINS] = "1000"
    try:
        from spillway import _native
    finally:
        if bounded:
            os.environ.pop(_SPINS, None)
    return _native


native = _load()
