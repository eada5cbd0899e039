"""How fast this machine is, beside other libraries, contenders in turns."""
