"""Exchange type `topic`: patterns of words, kept as a trie.

A binding key is words divided by dots; `*` stands for one word, `#` for any number of words, none
included. A message walks all its paths through the trie at once, one word at a time, so that the
cost depends on the words of its key and on how many patterns agree with it so far, not on how many
bindings there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.exchanges.router import KeyRouter
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from leveret.core.bindings import Binding
    from leveret.ports.definitions import BindingDefinition

# Every `#` lets a walk stay where it is while others go on: more of them multiply the paths.
WILDCARDS_MAX = 2


class Node:
    """What the words up to here have in common."""

    __slots__ = ("bindings", "children", "many", "one", "repeats")

    def __init__(self, *, repeats: bool = False) -> None:
        self.children: dict[str, Node] = {}
        self.one: Node | None = None  # behind `*`
        self.many: Node | None = None  # behind `#`
        self.repeats = repeats  # this node is behind a `#` and takes further words
        self.bindings: dict[Binding, None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be lost without it."""
        return not (self.bindings or self.children or self.one or self.many)

    def child(self, word: str) -> Node | None:
        """Find what lies behind one word of a pattern."""
        if word == "*":
            return self.one
        return self.many if word == "#" else self.children.get(word)

    def grow(self, word: str) -> Node:
        """Find or make what lies behind one word of a pattern."""
        node = self.child(word)
        if node is None:
            node = Node(repeats=word == "#")
            if word == "*":
                self.one = node
            elif word == "#":
                self.many = node
            else:
                self.children[word] = node
        return node

    def prune(self, word: str) -> None:
        """Cut off what lies behind one word of a pattern."""
        if word == "*":
            self.one = None
        elif word == "#":
            self.many = None
        else:
            del self.children[word]


class TopicRouter(KeyRouter):
    """Bindings by the words of their keys."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        self.root = Node()

    def check(self, binding: BindingDefinition) -> None:
        """Refuse (406) a key with more `#` than a walk should follow."""
        count = words(binding.routing_key).count("#")
        if count > WILDCARDS_MAX:
            raise ChannelError(
                406,
                f"Topic binding key '{binding.routing_key}' uses {count} '#' wildcards, "
                f"at most {WILDCARDS_MAX} are allowed",
            )

    def add(self, binding: Binding) -> None:
        """Take a binding in."""
        node = self.root
        for word in words(binding.definition.routing_key):
            node = node.grow(word)
        node.bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        """Let a binding go, and the branches that led to nothing else."""
        path = [(self.root, "")]
        for word in words(binding.definition.routing_key):
            child = path[-1][0].child(word)
            if child is None:
                raise KeyError(binding)
            path.append((child, word))
        del path[-1][0].bindings[binding]
        while len(path) > 1 and path[-1][0].is_empty:
            _, word = path.pop()
            path[-1][0].prune(word)

    def match(self, routing_key: str, _headers: dict[str, Any] | None) -> list[Binding]:
        """List the bindings whose pattern fits; each once, however many ways it fits."""
        reached: dict[Node, None] = {}
        reach(self.root, reached)
        for word in words(routing_key):
            reached = step(reached, word)
        return [binding for node in reached for binding in node.bindings]


def words(key: str) -> list[str]:
    """Split a key; the empty key has no words, while `a..b` has an empty one."""
    return key.split(".") if key else []


def step(nodes: dict[Node, None], word: str) -> dict[Node, None]:
    """Go on from all `nodes` by one word of a message's key."""
    following: dict[Node, None] = {}
    for node in nodes:
        if node.repeats:
            reach(node, following)
        child = node.children.get(word)
        if child is not None:
            reach(child, following)
        if node.one is not None:
            reach(node.one, following)
    return following


def reach(node: Node | None, reached: dict[Node, None]) -> None:
    """Note a node, and those behind it that need no word: a `#` may stand for nothing."""
    while node is not None:
        reached[node] = None
        node = node.many
