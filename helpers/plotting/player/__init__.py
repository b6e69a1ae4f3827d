"""A player in a notebook's output: the script and the style that stand in it, and what makes it of figures."""
