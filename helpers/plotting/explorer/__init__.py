"""A figure that its reader turns: the formulas it is computed by, the page it stands in, its script
and its style.
"""
