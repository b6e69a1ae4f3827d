from ._play import BEGINS as BEGINS, SCRIPT as SCRIPT
