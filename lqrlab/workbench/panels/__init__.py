"""Interactive panels; strips of pictures in headless runs."""
