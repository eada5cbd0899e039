"""The built-in families, one module a field; importing this registers them."""

from lqrlab.systems.catalogue import aerial, electrical, oscillators, pendulums, robots, vehicles

__all__ = ["aerial", "electrical", "oscillators", "pendulums", "robots", "vehicles"]
