"""A class on one server: JupyterHub with local users and nbgrader's exchange. See instructor.md."""
