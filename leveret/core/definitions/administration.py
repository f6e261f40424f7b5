"""Administrative changes of users, virtual hosts, permissions, policies and parameters.

Each operation checks, changes the state in memory and passes the change to the store; the caller,
who can wait, makes it durable (`store.flush`). A node and the command line on a stopped one perform
the same operations.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from leveret.core.access.limits import USER_LIMITS, VHOST_LIMITS
from leveret.core.access.permissions import AccessControl, InvalidPatternError
from leveret.core.definitions.parameters import Parameters
from leveret.core.definitions.validation import (
    AdministrationError,
    check_name,
    checked_tags,
    validated_limits,
)
from leveret.core.events import no_event
from leveret.core.settings.arguments import TYPES
from leveret.core.settings.policies import InvalidPolicyError, Policies
from leveret.features.alerts import rules as alerts
from leveret.ports.definitions import (
    INTERNAL,
    Definitions,
    GlobalParameterDefinition,
    ParameterDefinition,
    PermissionDefinition,
    PolicyDefinition,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leveret.core.events import Emit
    from leveret.ports import MetadataStore
    from leveret.ports.definitions import Definition, Json

__all__ = ["DEFAULT_USER", "DEFAULT_VHOST", "Administration", "AdministrationError"]

DEFAULT_VHOST = "/"
DEFAULT_USER = "guest"  # password: guest; from this machine only, see config.loopback_users
PROTECTED = "protected"  # the tag of users that cannot be deleted


def _ignore(_name: object) -> None:
    """Do nothing: the default callback."""


class Administration:
    """Administrative operations on the state in memory (`access`, …) and in the `store`."""

    def __init__(
        self,
        access: AccessControl,
        store: MetadataStore,
        *,
        random_name: Callable[[], str],
        on_vhost_added: Callable[[VhostDefinition], None],
        on_vhost_deleted: Callable[[str], None],
        on_vhost_changed: Callable[[VhostDefinition], None] = _ignore,
        on_user_deleted: Callable[[str], None] = _ignore,
        on_user_changed: Callable[[str], None] = _ignore,
        on_policies_changed: Callable[[str], None] = _ignore,
        policies: Policies | None = None,
        parameters: Parameters | None = None,
        emit: Emit = no_event,
        trace: Callable[[str, bool], None] | None = None,
    ) -> None:
        """Create it with callbacks that are called after each change, before a flush.

        So is `emit`, which publishes events (see leveret.core.events). `random_name()` returns a
        string that is unique for practical purposes, as stored with queues. `policies` and
        `parameters` are shared with the broker; `trace(vhost, on)` turns the firehose on or off if
        a node runs.
        """
        self.access = access
        self.store = store
        self.policies = policies or Policies()
        self.parameters = parameters or Parameters()
        self._vhosts: dict[str, VhostDefinition] = {}
        self._random_name = random_name
        self._on_vhost_added = on_vhost_added
        self._on_vhost_deleted = on_vhost_deleted
        self._on_vhost_changed = on_vhost_changed
        self._on_user_deleted = on_user_deleted
        self._on_user_changed = on_user_changed
        self._on_policies_changed = on_policies_changed
        self._emit = emit
        self._trace = trace

    def restore(self, definitions: Definitions) -> None:
        """Restore the stored definitions; no callback is called."""
        self._vhosts = {vhost.name: vhost for vhost in definitions.vhosts}
        self.access.restore(
            definitions.users, definitions.permissions, definitions.topic_permissions
        )
        self.policies.restore(definitions.policies)
        self.parameters.restore(definitions.parameters, definitions.global_parameters)

    @property
    def is_first_start(self) -> bool:
        """Whether there are no users and virtual hosts yet."""
        return not self._vhosts and not self.access.users()

    def create_defaults(self, guest_password_hash: str) -> None:
        """Create the definitions of a first start: virtual host `/`, and guest with all rights."""
        self._keep_vhost(VhostDefinition(DEFAULT_VHOST))
        self.add_user(DEFAULT_USER, guest_password_hash, ("administrator",))
        self.set_permission(PermissionDefinition(DEFAULT_VHOST, DEFAULT_USER, ".*", ".*", ".*"))

    # Users.

    def users(self) -> list[UserDefinition]:
        """Return all users, sorted by name."""
        return self.access.users()

    def user(self, name: str) -> UserDefinition:
        """Return the user with this name. Raises AdministrationError."""
        return self._user(name)

    def add_user(self, name: str, password_hash: str, tags: Iterable[str] = ()) -> None:
        """Add a user without any permissions. Raises AdministrationError."""
        check_name("user", name)
        if self.access.user(name) is not None:
            raise AdministrationError("already_exists", f"user '{name}' exists already")
        user = UserDefinition(name, password_hash, checked_tags(tags))
        self._keep_user(user)
        self._emit("user.created", {"name": name})
        if user.tags:
            self._emit("user.tags.set", {"name": name, "tags": user.tags})

    def set_password_hash(self, name: str, password_hash: str) -> None:
        """Replace a user's password. Raises AdministrationError."""
        self._keep_user(replace(self._user(name), password_hash=password_hash))
        key = "user.password.changed" if password_hash else "user.password.cleared"
        self._emit(key, {"name": name})

    def set_user_tags(self, name: str, tags: Iterable[str]) -> None:
        """Replace a user's tags. Raises AdministrationError."""
        user = replace(self._user(name), tags=checked_tags(tags))
        self._keep_user(user)
        self._emit("user.tags.set", {"name": name, "tags": user.tags})

    def set_user_limits(self, name: str, limits: Mapping[str, Json]) -> None:
        """Replace a user's limits, see USER_LIMITS. Raises AdministrationError."""
        checked = validated_limits(limits, USER_LIMITS, "user-limits")
        self._keep_user(replace(self._user(name), limits=checked))
        self._on_user_changed(name)

    def put_user(self, user: UserDefinition) -> None:
        """Add a user, or replace it completely. Raises AdministrationError."""
        check_name("user", user.name)
        checked = validated_limits(user.limits, USER_LIMITS, "user-limits")
        is_new = self.access.user(user.name) is None
        self._keep_user(replace(user, tags=checked_tags(user.tags), limits=checked))
        if is_new:
            self._emit("user.created", {"name": user.name})
        else:
            self._on_user_changed(user.name)

    def delete_user(self, name: str) -> None:
        """Delete a user and its permissions. Raises AdministrationError."""
        user = self._user(name)
        if PROTECTED in user.tags:
            raise AdministrationError("protected", f"user '{name}' is protected from deletion")
        self._drop(self.access.remove_user(name))
        self._drop(self.access.remove_topic_permissions(user=name))
        self.store.remove(user)
        self._on_user_deleted(name)
        self._emit("user.deleted", {"name": name})

    # Virtual hosts.

    def vhosts(self) -> list[VhostDefinition]:
        """Return all virtual hosts, sorted by name."""
        return sorted(self._vhosts.values(), key=lambda vhost: vhost.name)

    def vhost(self, name: str) -> VhostDefinition:
        """Return the virtual host with this name. Raises AdministrationError."""
        return self._vhost(name)

    def add_vhost(
        self,
        name: str,
        description: str = "",
        tags: Iterable[str] = (),
        default_queue_type: str = "classic",
    ) -> None:
        """Add a virtual host, which no user may enter yet. Raises AdministrationError."""
        if name in self._vhosts:
            raise AdministrationError("already_exists", f"vhost '{name}' exists already")
        self.put_vhost(VhostDefinition(name, description, tuple(tags), default_queue_type))

    def put_vhost(self, vhost: VhostDefinition) -> None:
        """Add a virtual host, or replace all but its incarnation. Raises AdministrationError."""
        check_name("vhost", vhost.name)
        if vhost.default_queue_type not in TYPES:
            raise AdministrationError(
                "invalid", f"unsupported default queue type '{vhost.default_queue_type}'"
            )
        checked = validated_limits(vhost.limits, VHOST_LIMITS, "limits")
        held = self._vhosts.get(vhost.name)
        incarnation = f"{INTERNAL}-{self._random_name()}" if held is None else held.incarnation
        tags = checked_tags(vhost.tags)
        self._keep_vhost(replace(vhost, tags=tags, limits=checked, incarnation=incarnation))

    def _keep_vhost(self, vhost: VhostDefinition) -> None:
        is_new = vhost.name not in self._vhosts
        self._vhosts[vhost.name] = vhost
        self.store.put(vhost)
        if is_new:
            self._on_vhost_added(vhost)
            self._emit(
                "vhost.created",
                {
                    "name": vhost.name,
                    "description": vhost.description,
                    "tags": vhost.tags,
                    "default_queue_type": vhost.default_queue_type,
                    "tracing": False,
                },
            )
        else:
            self._on_vhost_changed(vhost)

    def describe_vhost(
        self,
        name: str,
        description: str | None = None,
        tags: Iterable[str] | None = None,
        default_queue_type: str | None = None,
    ) -> None:
        """Change those given of a virtual host's description, tags and default queue type.

        Raises AdministrationError.
        """
        vhost = self._vhost(name)
        self.put_vhost(
            replace(
                vhost,
                description=vhost.description if description is None else description,
                tags=vhost.tags if tags is None else tuple(tags),
                default_queue_type=default_queue_type or vhost.default_queue_type,
            )
        )

    def protect_vhost(self, name: str, *, protected: bool) -> None:
        """Set whether a virtual host is protected from deletion. Raises AdministrationError."""
        self.put_vhost(replace(self._vhost(name), protected_from_deletion=protected))

    def let_vhost_create_queues(self, name: str, *, on: bool) -> None:
        """Set whether messages create the queues they are for. Raises AdministrationError."""
        self.put_vhost(replace(self._vhost(name), creates_queues=on))

    def set_vhost_limits(self, name: str, limits: Mapping[str, Json]) -> None:
        """Replace a virtual host's limits, see VHOST_LIMITS. Raises AdministrationError."""
        self.put_vhost(replace(self._vhost(name), limits=dict(limits)))
        self._emit(
            "vhost.limits.set" if limits else "vhost.limits.cleared",
            {"name": "limits", "vhost": name, **limits},
        )

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host with everything in it. Raises AdministrationError."""
        vhost = self._vhost(name)
        if vhost.protected_from_deletion:
            raise AdministrationError(
                "protected",
                f"Refusing to delete virtual host '{name}' because it is protected from deletion",
            )
        del self._vhosts[name]
        self.access.remove_vhost(name)
        self.access.remove_topic_permissions(vhost=name)
        self.policies.remove_vhost(name)
        self.parameters.remove_vhost(name)
        self.store.remove_vhost(name)  # with its contents, which may take time to remove
        self._on_vhost_deleted(name)
        self._emit("vhost.deleted", {"name": name})

    def trace_vhost(self, name: str, *, on: bool) -> None:
        """Turn the firehose on or off; a restart turns it off. Raises AdministrationError."""
        self._vhost(name)
        if self._trace is None:
            raise AdministrationError("invalid", "only a running node can be traced")
        self._trace(name, on)

    # Permissions.

    def permissions(
        self, *, user: str | None = None, vhost: str | None = None
    ) -> list[PermissionDefinition]:
        """Return permissions of a user, a virtual host, or all. Raises AdministrationError."""
        if user is not None:
            self._user(user)
        if vhost is not None:
            self._vhost(vhost)
        return self.access.permissions(user=user, vhost=vhost)

    def set_permission(self, definition: PermissionDefinition) -> None:
        """Set a user's permissions in a virtual host. Raises AdministrationError."""
        self._user(definition.user)
        self._vhost(definition.vhost)
        try:
            self.access.put_permission(definition)
        except InvalidPatternError as error:
            raise AdministrationError("invalid", str(error)) from None
        self.store.put(definition)
        self._emit("permission.created", asdict(definition))

    def clear_permission(self, user: str, vhost: str) -> None:
        """Remove a user's permissions in a virtual host, if any. Raises AdministrationError."""
        self._user(user)
        self._vhost(vhost)
        self._drop(self.access.remove_permission(user, vhost))
        self._emit("permission.deleted", {"user": user, "vhost": vhost})

    def topic_permissions(
        self, *, user: str | None = None, vhost: str | None = None
    ) -> list[TopicPermissionDefinition]:
        """Return topic permissions of a user, a virtual host, or all.

        Raises AdministrationError.
        """
        if user is not None:
            self._user(user)
        if vhost is not None:
            self._vhost(vhost)
        return self.access.topic_permissions(user=user, vhost=vhost)

    def set_topic_permission(self, definition: TopicPermissionDefinition) -> None:
        """Restrict a user to some keys of a topic exchange. Raises AdministrationError."""
        self._user(definition.user)
        self._vhost(definition.vhost)
        try:
            self.access.put_topic_permission(definition)
        except InvalidPatternError as error:
            raise AdministrationError("invalid", str(error)) from None
        self.store.put(definition)
        self._emit("topic.permission.created", asdict(definition))

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> None:
        """Lift the restrictions on one exchange or all of them. Raises AdministrationError."""
        self._user(user)
        self._vhost(vhost)
        self._drop(self.access.remove_topic_permissions(user=user, vhost=vhost, exchange=exchange))
        told = {"user": user, "vhost": vhost}
        self._emit(
            "topic.permission.deleted", told if exchange is None else {**told, "exchange": exchange}
        )

    # Policies and parameters.

    def set_policy(self, policy: PolicyDefinition, *, imported: bool = False) -> None:
        """Add or replace a policy, which applies at once. Raises AdministrationError.

        An imported one may have settings without effect.
        """
        check_name("policy", policy.name)
        self._vhost(policy.vhost)
        try:
            self.policies.put(policy, imported=imported)
        except InvalidPolicyError as error:
            raise AdministrationError("invalid", f"Validation failed\n\n{error}\n") from None
        self.store.put(policy)
        self._on_policies_changed(policy.vhost)
        self._emit(
            "policy.set",
            {
                "name": policy.name,
                "vhost": policy.vhost,
                "pattern": policy.pattern,
                "definition": policy.definition,
                "priority": policy.priority,
                "apply-to": policy.apply_to,
            },
        )

    def clear_policy(self, vhost: str, name: str, *, operator: bool = False) -> None:
        """Delete a policy, which ends to apply at once. Raises AdministrationError."""
        self._vhost(vhost)
        removed = self.policies.remove(vhost, name, operator=operator)
        if removed is None:
            kind = "operator policy" if operator else "policy"
            raise AdministrationError("not_found", f"no {kind} '{name}' in vhost '{vhost}'")
        self.store.remove(removed)
        self._on_policies_changed(vhost)
        self._emit(
            "operator.policy.cleared" if operator else "policy.cleared",
            {"name": name, "vhost": vhost},
        )

    def set_parameter(self, parameter: ParameterDefinition) -> None:
        """Add or replace a parameter of a component. Raises AdministrationError."""
        check_name("component", parameter.component)
        check_name("parameter", parameter.name)
        self._vhost(parameter.vhost)
        told = asdict(parameter)
        if parameter.component == alerts.COMPONENT:
            try:
                alerts.AlertRule.parse(parameter.vhost, parameter.name, parameter.value)
            except alerts.InvalidRuleError as error:
                raise AdministrationError("invalid", str(error)) from None
            told["value"] = {key: value for key, value in told["value"].items() if key != "secret"}
        self.parameters.put(parameter)
        self.store.put(parameter)
        self._emit("parameter.set", told)

    def clear_parameter(self, vhost: str, component: str, name: str) -> None:
        """Delete a parameter. Raises AdministrationError."""
        self._vhost(vhost)
        removed = self.parameters.remove(vhost, component, name)
        if removed is None:
            raise AdministrationError(
                "not_found", f"no parameter '{name}' of {component} in vhost '{vhost}'"
            )
        self.store.remove(removed)
        self._emit("parameter.cleared", {"vhost": vhost, "component": component, "name": name})

    def set_global_parameter(self, parameter: GlobalParameterDefinition) -> None:
        """Add or replace a parameter of the node. Raises AdministrationError."""
        check_name("parameter", parameter.name)
        self.parameters.put_global(parameter)
        self.store.put(parameter)
        self._emit("parameter.set", {"global": True, **asdict(parameter)})

    def clear_global_parameter(self, name: str) -> None:
        """Delete a parameter of the node. Raises AdministrationError."""
        removed = self.parameters.remove_global(name)
        if removed is None:
            raise AdministrationError("not_found", f"no global parameter '{name}'")
        self.store.remove(removed)
        self._emit("parameter.cleared", {"global": True, "name": name})

    def _user(self, name: str) -> UserDefinition:
        user = self.access.user(name)
        if user is None:
            raise AdministrationError("not_found", f"no user '{name}'")
        return user

    def _vhost(self, name: str) -> VhostDefinition:
        vhost = self._vhosts.get(name)
        if vhost is None:
            raise AdministrationError("not_found", f"no vhost '{name}'")
        return vhost

    def _keep_user(self, user: UserDefinition) -> None:
        self.access.put_user(user)
        self.store.put(user)

    def _drop(self, definitions: Iterable[Definition]) -> None:
        for definition in definitions:
            self.store.remove(definition)
