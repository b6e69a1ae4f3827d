"""The course where others reach it: the repository's address, and what a notebook in Colab begins
with.
"""
