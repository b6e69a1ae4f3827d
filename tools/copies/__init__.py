"""The reader's own copy of the course: what it holds, and how it is kept up to date without
touching what is theirs.
"""
