# Only in Colab: fetches the course, and installs what this machine lacks. What is here stays as it
# is. Run it first.
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib

FILES = "/content/course_files"
if not os.path.isdir(FILES):
    fetch = ["git", "clone", "--quiet", "--depth=1", "--branch=colab", "ADDRESS", FILES]
    subprocess.run(fetch, check=True)
with open(f"{FILES}/pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
installed = {
    distribution.name.lower().replace("_", "-")
    for distribution in importlib.metadata.distributions()
}
installed.add("jupyterlab")  # Colab is in its place
needed = [*project["dependencies"], *project["optional-dependencies"]["course"]]
lacking = [
    requirement
    for requirement in needed
    if re.findall(r"^[\w.-]+", requirement)[0] not in installed
]
install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
subprocess.run([*install, FILES, *lacking], check=True)
os.chdir(f"{FILES}/course")
print("installed besides the course:", ", ".join(lacking) or "nothing")
