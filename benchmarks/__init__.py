"""Speed next to other libraries, in turns on the same problems; and how good controllers are. See ``__main__``."""
