"""Requests that are refused in words, a line each: ``refused("dt: expected a time", control.c2d, A, B, -1.0)``."""

import pytest


def refused(words, call, *args, **kwargs):
    """The call ends in a ``ValueError`` whose message has these words, a regular expression."""
    with pytest.raises(ValueError, match=words):
        call(*args, **kwargs)
