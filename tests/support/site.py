"""A broker and its HTTP API in one process, without sockets."""

from dataclasses import replace

from leveret.core.definitions.administration import Administration
from leveret.mgmt_ui.managed import ManagedNode
from leveret.mgmt_ui.operations.context import AdminContext
from leveret.mgmt_ui.operations.runtime import Listener, Runtime
from leveret.mgmt_ui.web import create_app
from leveret.ports.definitions import PermissionDefinition, UserDefinition
from tests.support.http import in_process_client
from tests.support.stage import Stage

LISTENERS = (Listener("amqp", "127.0.0.1", 5672), Listener("http", "127.0.0.1", 15672))


def behind(application, name):
    """Return what an application holds as `name`, in itself or in what it wraps."""
    while not hasattr(application, name):
        application = application._app
    return getattr(application, name)


class Site:
    """A node and its HTTP API; every user's password is its name."""

    def __init__(self, **settings):
        self.stage = Stage(**{"login_delay_seconds": 0, **settings})
        self.broker = self.stage.broker
        self.administration = Administration(
            self.stage.access,
            self.stage.metadata,
            on_vhost_added=self.broker.add_vhost,
            on_vhost_deleted=self.broker.remove_vhost,
            on_vhost_changed=self.broker.change_vhost,
            on_user_deleted=self.broker.shut_user,
            on_policies_changed=self.broker.apply_policies,
            policies=self.broker.policies,
            parameters=self.broker.parameters,
        )
        self.administration.restore(self.stage.definitions())
        self.serving = True
        self.add_user("guest", "administrator")
        self.context = AdminContext(
            self.administration,
            self.broker.vhosts,
            broker=self.broker,
        )
        self.equip()

    def equip(self, **parts):
        """Give the node what operations work on, and make its application."""
        self.context = replace(self.context, **parts)
        self.node = ManagedNode(
            "leveret@test",
            self.broker,
            self.context,
            self.stage.configuration,
            None,  # whoever publishes or gets needs a running node
            LISTENERS,
            lambda: self.serving,
        )
        self.app = create_app(self.node)

    def forbid_deletion(self):
        """Run as with `--no-http-delete`."""
        configuration = self.stage.configuration.model_copy(update={"http_delete": False})
        self.equip(runtime=Runtime(configuration, 0, self.broker.timers.wall_ms))

    def add_user(self, name, *tags):
        self.stage.access.put_user(UserDefinition(name, f"hash of {name}", tags))

    def permit(self, user, vhost, *patterns):
        """Configure, write and read, all of them unless it is said what."""
        patterns = patterns or (".*", ".*", ".*")
        self.stage.access.put_permission(PermissionDefinition(vhost, user, *patterns))

    async def ask(self, method, path, body=None, user="guest", **options):
        """Send a JSON body, or none."""
        return await self.get(path, user, method=method, json=body, **options)

    async def get(self, path, user="guest", *, peer="127.0.0.1", method="GET", **said):
        auth = (user, user) if user else None
        async with in_process_client(self.app, peer) as client:
            return await client.request(method, path, auth=auth, **said)

    async def json(self, path, user="guest"):
        response = await self.get(path, user)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        return response.json()

    async def error(self, path, user="guest", **options):
        response = await self.get(path, user, **options)
        return response.status_code, response.json()["error"], response.json()["reason"]
