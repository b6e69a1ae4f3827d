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
here = {one.name.lower().replace("_", "-") for one in importlib.metadata.distributions()}
here.add("jupyterlab")  # Colab is in its place
needed = [*project["dependencies"], *project["optional-dependencies"]["course"]]
lacking = [one for one in needed if re.findall(r"^[\w.-]+", one)[0] not in here]
install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
subprocess.run([*install, FILES, *lacking], check=True)
os.chdir(f"{FILES}/course")
print("installed besides the course:", ", ".join(lacking) or "nothing")
