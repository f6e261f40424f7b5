"""A broker and its HTTP API in one process, without sockets."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace

from leveret.amqp.in_process import InProcessClients
from leveret.amqp.sockets import ClientSockets, committed
from leveret.broker.usage_keeping import UsageKeeper
from leveret.core.definitions.administration import Administration
from leveret.features.alerts.alerting import Alerting
from leveret.mgmt_ui.managed import ManagedNode
from leveret.mgmt_ui.operations.audit import Audit
from leveret.mgmt_ui.operations.context import AdminContext
from leveret.mgmt_ui.operations.runtime import Listener, Runtime
from leveret.mgmt_ui.web import create_app
from leveret.ports.definitions import PermissionDefinition, UserDefinition
from leveret.storage.audit import SqliteAuditStore
from leveret.storage.files import RealFileSystem
from leveret.storage.key_administration import KeyAdministration
from leveret.storage.keyring import Keyring
from leveret.storage.usage import SqliteUsageStore
from tests.storage.keys import MASTER
from tests.support.http import HttpClient, InProcessTransport, in_process_client
from tests.support.stage import Stage
from tests.support.waiting import ASYNC_POLL_SECONDS

LISTENERS = (Listener("amqp", "127.0.0.1", 5672), Listener("http", "127.0.0.1", 15672))


def behind(application, name):
    """Return what an application holds as `name`, in itself or in what it wraps."""
    while not hasattr(application, name):
        application = application._app
    return getattr(application, name)


class WorkingOn:
    """An application whose node works on while it answers."""

    def __init__(self, app, site):
        self._app = app
        self._site = site

    async def __call__(self, *connection):
        async with self._site.working():
            await self._app(*connection)


class Site:
    """A node and its HTTP API; every user's password is its name."""

    step_seconds = 0.0  # how much later it is whenever the broker is let work, while it is asked

    def __init__(self, **settings):
        self.stage = Stage(**{"login_delay_seconds": 0, **settings})
        self.broker = self.stage.broker
        self.administration = Administration(
            self.stage.access,
            self.stage.metadata,
            random_name=lambda: self.broker.random_name(""),
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
        self.run = None  # does a coroutine, where a test does not await
        self.add_user("guest", "administrator")
        self.context = AdminContext(
            self.administration,
            self.broker.vhosts,
            broker=self.broker,
        )
        self.equip()

    @asynccontextmanager
    async def working(self):
        """Let the broker work, and its clock go on, while something is waited for."""

        async def work():
            while True:
                self.stage.advance(self.step_seconds)
                await asyncio.sleep(ASYNC_POLL_SECONDS)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(work())
            yield
            task.cancel()
        self.stage.run()

    def equip(self, **parts):
        """Give the node what operations work on; its application is made for the next request."""
        self.context = replace(self.context, **parts)
        self.node = ManagedNode(
            "leveret@test",
            self.broker,
            self.context,
            self.stage.configuration,
            self.context.sessions,
            LISTENERS,
            lambda: self.serving,
        )
        self._app = None

    @property
    def app(self):
        """The node's application."""
        if self._app is None:
            self._app = WorkingOn(create_app(self.node), self)
        return self._app

    @asynccontextmanager
    async def running(self, directory, master=MASTER):
        """Have what a running node has: sessions, alerts, and what it keeps in `directory`.

        Without a master key no virtual host can be encrypted.
        """
        broker, files = self.broker, RealFileSystem()
        usage = SqliteUsageStore(directory / "usage.db")
        audit = SqliteAuditStore(directory / "audit.db")
        tasks, loop = set(), asyncio.get_running_loop()
        sockets = ClientSockets(
            broker, self.stage.configuration, lambda work: tasks.add(loop.create_task(work))
        )
        self.equip(
            usage=UsageKeeper(broker, usage, self.stage.clock.wall_ms, committed, 1),
            audit=Audit(audit, self.stage.clock.wall_ms),
            alerting=Alerting(
                broker.vhosts,
                broker.events,
                self.administration.parameters,
                wall_ms=self.stage.clock.wall_ms,
                node_values=dict,
                tell=lambda _: None,
                breathe=lambda: asyncio.sleep(0),
                lags_of=lambda queue: {
                    name: group.lag for name, group in broker.groups.of_queue(queue).items()
                },
            ),
            encryption=KeyAdministration(
                Keyring(files, directory, master), files, directory, self.stage.clock.wall_ms
            ),
            sessions=InProcessClients(sockets),
        )
        try:
            yield self
        finally:
            await usage.close()
            await audit.close()

    def http_client(self, path="", user="guest", **options):
        """Return a client that does not await; the site is one of `running_site`."""
        transport = InProcessTransport(self.app, self.run)
        return HttpClient(f"node{path}", user, transport=transport, **options)

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


@contextmanager
def running_site(directory, master=MASTER):
    """Yield a site that runs, for clients that do not await: it and its clock go on as they ask."""
    with asyncio.Runner() as runner:
        site, parts = Site(), AsyncExitStack()
        site.step_seconds = 0.01
        site.run = runner.run
        runner.run(parts.enter_async_context(site.running(directory, master)))
        yield site
        runner.run(parts.aclose())
