"""/etc/jupyterhub/jupyterhub_config.py: who may log in, what is started for them, and where the hub
listens.

Written by `python -m tools.server install`, which fills in the words between @ signs.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traitlets.config import get_config  # when it is read, the name is there

c = get_config()

PLACE, STATE = Path("@PLACE@"), Path("@STATE@")
KEY, CERTIFICATE = Path("/etc/jupyterhub/key.pem"), Path("/etc/jupyterhub/certificate.pem")

# Local users with their own passwords (PAM); of these, the members of two groups. Neither is an
# administrator.
c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.allowed_groups = {"course-students", "course-lecturers"}

# A server for each, with that user's rights, in that user's home. The start puts the lessons there.
c.JupyterHub.spawner_class = "jupyterhub.spawner.LocalProcessSpawner"
c.Spawner.cmd = [str(PLACE / "server" / "start")]
c.Spawner.notebook_dir = "~"
c.Spawner.default_url = "/lab"
c.Spawner.start_timeout = 120
c.Spawner.http_timeout = 120
c.Spawner.env_keep = ["LANG", "LC_ALL", "TZ"]
# how many may work at once; lower it where the memory is short. An idle one
c.JupyterHub.active_server_limit = 60
# ends itself (the start has the hours), so no service with rights over all servers is needed for
# that.
c.JupyterHub.shutdown_on_logout = True

# Without a certificate the hub is seen from this machine alone, since passwords would travel in the
# clear.
if KEY.exists() and CERTIFICATE.exists():
    c.JupyterHub.bind_url = "https://:443"
    c.JupyterHub.ssl_key, c.JupyterHub.ssl_cert = str(KEY), str(CERTIFICATE)
else:
    c.JupyterHub.bind_url = "http://127.0.0.1:8000"

# What the hub remembers, for root alone.
c.JupyterHub.db_url = f"sqlite:///{STATE / 'jupyterhub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(STATE / "cookie_secret")
c.ConfigurableHTTPProxy.pid_file = str(STATE / "proxy.pid")
c.ConfigurableHTTPProxy.command = ["@NODE@", "@PROXY@"]
